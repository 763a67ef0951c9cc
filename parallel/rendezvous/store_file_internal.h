// The file behind a FileStore: a header (the number of the run) and records, each a frame with a request that changed
// the table, and a checksum of the frame. Records are only appended, under an exclusive lock; a reader continues at
// the last record it read.
//
// Every user holds a shared lock on one byte for its lifetime. The kernel releases the lock when the process ends, so
// a process that can lock the byte exclusively has opened the file of a run that has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

// Not thread-safe. All calls but `path` and `descriptor` need the lock to be held.
class StoreFile {
 public:
  // Opens or creates the file. Throws IoError if it is a link, not a regular file, or has another owner or mode.
  explicit StoreFile(std::string path);

  // Throws CommTimeout if another process holds the lock until the deadline.
  void lock(Deadline deadline);
  void unlock();

  // Whether the path still names this file: its last user may have removed the file.
  bool is_current() const;
  // Joins the run as a user; writes the header of a new run if the file is empty or none of its users is alive.
  void join();
  // Leaves the run. The last user removes the file if at least `world_size` users have joined the run.
  void leave(int world_size);

  // Reads the records that other users have appended, and executes the request. Returns nothing if the request waits
  // for keys. Throws IoError if the file is broken.
  std::optional<std::string> execute(const StoreRequest& request);

  const StoreTable& table() const { return table_; }
  const std::string& path() const { return path_; }
  int descriptor() const { return file_.get(); }

 private:
  void begin();
  void read_header();
  void catch_up();
  std::size_t take_record(std::string_view rest);
  std::string record_of(const StoreRequest& request) const;
  void append(const std::string& bytes);
  std::string read_from(std::uint64_t offset, std::uint64_t most) const;
  std::uint64_t size() const;
  bool is_only_user();
  std::int64_t count(std::string_view key);
  void forget();
  [[noreturn]] void fail_broken(std::uint64_t offset, const std::string& why) const;

  std::string path_;
  Descriptor file_;
  std::uint64_t end_ = 0;    // end of the records that were read
  std::uint64_t nonce_ = 0;  // the number of the run
  StoreTable table_;
};

}  // namespace lockstep::parallel
