// The file behind a FileStore: a header (whose run it is) and records, each a frame of the store's messages and a checksum
// of it. Records are only ever appended, under an exclusive lock, so who has read so far reads on from there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_table_internal.h"

namespace lockstep::parallel {

// A process, told from a later one with the same number by its start time (clock ticks after boot).
struct ProcessMark {
  pid_t pid = 0;
  std::uint64_t start = 0;

  static ProcessMark own();
  bool is_alive() const;
};

// Not thread-safe. Everything but `path` wants the lock to be held.
class StoreFile {
 public:
  // Opens or makes the file. Throws IoError where it is a link, no regular file, of another user or of another mode.
  explicit StoreFile(std::string path);

  // Throws CommTimeout where another process has the lock for so long.
  void lock(Deadline deadline);
  void unlock();

  // Whether the path still leads to this file: its last user may have removed it.
  bool is_current() const;
  // Writes the header of a new run where the file is empty, or where neither who made it nor any user is alive.
  void begin();
  // Reads what was appended since the last time. Throws IoError where that is broken.
  void catch_up();

  // The changes, which others see as soon as they catch up. The table is changed as well.
  void set(const std::string& key, const std::string& value);
  std::int64_t add(const std::string& key, std::int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool delete_key(const std::string& key);
  // A last will of this process under a name of its own.
  void leave_will(const std::string& name, const std::vector<std::string>& keys, const std::string& value);
  void cancel_will(const std::string& name);
  void carry_out_will(const std::string& name);
  // The wills of processes that have ended.
  void carry_out_wills();
  void join(const std::string& user);
  void leave(const std::string& user);
  void remove();

  const StoreTable& table() const { return table_; }
  bool has_living_users() const;
  int joined() const { return joined_; }  // users so far, those included who have left
  const std::string& path() const { return path_; }
  int descriptor() const { return file_.get(); }

 private:
  enum class Record : std::uint8_t { kSet = 1, kDelete, kJoin, kLeave, kWill, kEndOfWill };
  struct Will {
    ProcessMark process;
    std::string value;
    std::vector<std::string> keys;
  };

  void read_header();
  std::size_t take_record(std::string_view rest);
  void apply(Record record, const std::vector<std::string>& fields);
  void append(Record record, const std::vector<std::string>& fields);
  void write_at_end(const std::string& bytes);
  std::string read_from(std::uint64_t offset, std::uint64_t most) const;
  std::uint64_t size() const;
  void forget();
  [[noreturn]] void fail_broken(std::uint64_t offset, const std::string& why) const;

  std::string path_;
  Descriptor file_;
  std::uint64_t end_ = 0;    // of what has been read
  std::uint64_t nonce_ = 0;  // of the run
  ProcessMark creator_;
  StoreTable table_;
  std::map<std::string, ProcessMark> users_;
  std::map<std::string, Will> wills_;
  int joined_ = 0;
};

}  // namespace lockstep::parallel
