// The requests of a store and their limits, the table that executes requests, and the frames in which clients and
// servers of Unix and TCP stores exchange them.
//
// A frame is a length (u32, little-endian) and as many bytes: a hello, or a message: a code (u8) and fields (u32
// count; each a u32 length and its bytes). A request has its operation as code and its keys and values as fields, a
// reply its status and the result.
#pragma once

#include <charconv>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

// --- frames ---------------------------------------------------------------------------------------------------------

enum class StoreStatus : std::uint8_t {
  kDone = 1,      // with the result, if there is one
  kAccepted,      // reply to a hello; with the server's id
  kOtherVersion,  // reply to a hello; with the server's version
  kOtherJob,      // reply to a hello
  kExhausted,     // reply to a hello; with the resource that the server's process has run out of
  kInvalid,       // with the text of an InvalidArgument
  kMalformed,     // with the error of the frame; the server then closes the connection
};

struct StoreMessage {
  std::uint8_t code = 0;
  std::vector<std::string> fields;
};

// Identifies a run, so that two runs never mix: a hash of the run's token or id.
struct JobId {
  std::uint64_t low = 0, high = 0;
  bool operator==(const JobId&) const = default;
};

// The first frame of a client.
struct StoreHello {
  static constexpr std::uint64_t kMagic = 0x6c6f636b73746570;  // "lockstep"
  static constexpr std::uint32_t kVersion = 4;
  std::uint32_t version = kVersion;
  JobId job;
};

// Appends a number, little-endian.
void put_little(std::string& out, std::unsigned_integral auto value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// Complete frames. Reading throws an IoError naming the field.
std::string frame(const StoreHello& hello);
std::string frame(std::uint8_t code, const std::vector<std::string>& fields);
std::string frame(const StoreRequest& request);
inline std::string frame(StoreStatus status, const std::vector<std::string>& fields = {}) {
  return frame(static_cast<std::uint8_t>(status), fields);
}
StoreHello read_hello(std::string_view content);
StoreMessage read_message(std::string_view content);

// The content of the first frame in `bytes`, if the frame is complete. Throws IoError if its length exceeds `most`.
std::optional<std::string_view> first_frame(std::string_view bytes, std::size_t most);
inline constexpr std::size_t kFrameHeader = 4;

// --- requests and the table -----------------------------------------------------------------------------------------

// All of `text` as a number; nothing if `text` is not a number, or too large.
template <std::integral T>
std::optional<T> whole_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool changes_table(StoreOp op);
bool waits_for_keys(StoreOp op);
// Throws InvalidArgument if a limit of a store is exceeded, or keys or values are missing.
void check_store_request(const StoreRequest& request);
// For messages: `add to "n"`, `wait for "a" and 2 others`.
std::string describe(const StoreRequest& request);

// The request of a message. Throws IoError for an unknown operation, or a number of fields that does not fit.
StoreRequest to_request(std::uint8_t op, std::vector<std::string> fields);

// Neither waits nor locks.
class StoreTable {
 public:
  // Executes a request that check_store_request accepts. Returns nothing if the request must wait for a key. Throws
  // InvalidArgument if there is no room, or if `add` finds a value that is not a number.
  std::optional<std::string> execute(const StoreRequest& request);
  // Executes a last-will entry: sets those of `keys` that do not exist, as far as there is room.
  void set_missing(const std::vector<std::string>& keys, const std::string& value);

  bool has_room(const std::string& key, const std::string& value) const;
  std::uint64_t changes() const { return changes_; }  // number of changes of the table
  const std::map<std::string, std::string>& values() const { return values_; }
  // The first of `keys` that does not exist; null if all exist.
  const std::string* first_missing(const std::vector<std::string>& keys) const;

 private:
  const std::string* find(const std::string& key) const;  // null if the key does not exist
  void set(const std::string& key, const std::string& value);
  std::string add(const std::string& key, const std::string& amount);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool delete_key(const std::string& key);
  std::size_t bytes_with(const std::string& key, const std::string& value) const;

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::uint64_t changes_ = 0;
};

// A table for the threads of one process.
class SharedTable {
 public:
  // Executes a request, and waits for its keys. Throws as Store::request does.
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout);
  // The same as StoreTable's methods.
  std::optional<std::string> execute(const StoreRequest& request);
  void set_missing(const std::vector<std::string>& keys, const std::string& value);
  std::uint64_t changes();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  StoreTable table_;
};

// A last-will entry of the process that holds the table. It takes effect only when it is destroyed.
class ThreadLastWill final : public LastWill {
 public:
  using SetMissing = Callback<void(const std::vector<std::string>& keys, const std::string& value)>;
  ThreadLastWill(std::vector<std::string> keys, std::string value, SetMissing set_missing);
  ~ThreadLastWill() override {
    if (set_missing_) set_missing_(keys_, value_);
  }
  void cancel() override { set_missing_ = {}; }

 private:
  std::vector<std::string> keys_;
  std::string value_;
  SetMissing set_missing_;
};

}  // namespace lockstep::parallel
