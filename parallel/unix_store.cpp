#include "lockstep/parallel/unix_store.h"

#include <poll.h>

#include <algorithm>
#include <charconv>

#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/store_table_internal.h"
#include "lockstep/tensor/byte_reader.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

// Waits until the socket is ready for `events` or closed; false at the deadline.
bool wait_for(const Descriptor& socket, short events, Deadline& deadline) {
  for (;;) {
    const std::chrono::milliseconds slice = deadline.slice();  // first: it may move the deadline
    if (deadline.passed()) return false;
    pollfd ready{socket.get(), events, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(slice.count()));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR && errno != EAGAIN)
      throw CommError(fmt::format("store: cannot wait: {}", reason(errno)));
  }
}

enum class Outcome { kAnswered, kClosed, kTimeout };

// Sends `request` and reads one frame into `answer`, its header included.
Outcome converse(const Descriptor& socket, const std::string& request, std::string& answer, Deadline& deadline) {
  std::size_t sent = 0;
  for (;;) {
    const Transfer transfer = send_some(socket, request, sent);
    if (transfer == Transfer::kDone) break;
    // The server may have said why it closed: what it sent can still be read.
    if (transfer == Transfer::kClosed) break;
    if (!wait_for(socket, POLLOUT, deadline)) return Outcome::kTimeout;
  }
  while (!first_frame(answer, kMaxFrame)) {
    const Transfer transfer = receive_some(socket, answer, kMaxFrame);
    if (transfer == Transfer::kClosed) return Outcome::kClosed;
    if (transfer == Transfer::kWouldBlock && !wait_for(socket, POLLIN, deadline)) return Outcome::kTimeout;
  }
  return Outcome::kAnswered;
}

Welcome to_welcome(std::uint8_t code) {
  switch (static_cast<StoreStatus>(code)) {
    case StoreStatus::kWelcome:
      return Welcome::kYes;
    case StoreStatus::kOtherVersion:
      return Welcome::kOtherVersion;
    case StoreStatus::kOtherSize:
      return Welcome::kOtherSize;
    default:
      return Welcome::kOtherJob;
  }
}

}  // namespace

Greeting greet(const UnixStoreOptions& options, Deadline deadline) {
  Greeting out;
  Descriptor socket = connect_abstract(options.socket);
  if (!socket) {
    // EAGAIN: its queue is full, so it is alive and busy.
    if (errno != ECONNREFUSED && errno != EAGAIN)
      throw CommError(fmt::format("store: {}: {}", options.address, reason(errno)));
    return out;
  }
  out.server = peer_of(socket);
  out.welcome = Welcome::kOtherUser;
  if (!is_trusted(out.server)) return out;

  const StoreHello hello{.job = options.job,
                         .rank = static_cast<std::uint32_t>(options.rank),
                         .size = static_cast<std::uint32_t>(options.size)};
  std::string answer;
  try {
    const Outcome outcome = converse(socket, frame(hello), answer, deadline);
    out.welcome = outcome == Outcome::kClosed ? Welcome::kGone : Welcome::kSilent;
    if (outcome != Outcome::kAnswered) return out;
    StoreMessage message = read_message(*first_frame(answer, kMaxFrame));
    out.welcome = to_welcome(message.code);
    if (!message.fields.empty()) out.detail = std::move(message.fields[0]);
  } catch (const IoError&) {
    out.welcome = Welcome::kOtherJob;  // some other program
  }
  if (out.welcome == Welcome::kYes) out.socket = std::move(socket);
  return out;
}

UnixStore::UnixStore(UnixStoreOptions options, Greeting greeting, std::unique_ptr<UnixStoreServer> server)
    : options_(std::move(options)), server_(std::move(server)), server_pid_(greeting.server.pid) {
  idle_.push_back(std::move(greeting.socket));
}

UnixStore::~UnixStore() = default;

Descriptor UnixStore::take_connection(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Descriptor socket = std::move(idle_.back());
      idle_.pop_back();
      return socket;
    }
  }
  Greeting greeting = greet(options_, Deadline(std::min<std::chrono::milliseconds>(timeout, kHandshakeDeadline)));
  if (greeting.welcome == Welcome::kYes) return std::move(greeting.socket);
  throw CommError(
      fmt::format("store: {}: rank 0 (process {}), which holds it, has left or died", options_.address, server_pid_));
}

StoreMessage UnixStore::exchange(const Descriptor& socket, const std::string& request, const std::string& what,
                                 std::chrono::milliseconds timeout) const {
  Deadline deadline(timeout);
  std::string answer;
  const Outcome outcome = converse(socket, request, answer, deadline);
  if (outcome == Outcome::kClosed)
    throw CommError(fmt::format("store: {}: rank 0 (process {}), which holds the store at {}, has left or died", what,
                                server_pid_, options_.address));
  if (outcome == Outcome::kTimeout)
    throw CommTimeout(
        fmt::format("store: {}: no answer within {} ms from the store at {}", what, timeout.count(), options_.address));
  try {
    return read_message(*first_frame(answer, kMaxFrame));
  } catch (const IoError& error) {
    throw CommError(fmt::format("store: {}: the answer cannot be read: {}", what, error.what()));
  }
}

// A connection goes back only after a whole exchange; closing it ends the wait on the server.
std::vector<std::string> UnixStore::ask(StoreOp op, const std::vector<std::string>& fields, const std::string& what,
                                        std::chrono::milliseconds timeout) {
  Descriptor socket = take_connection(timeout);
  StoreMessage answer = exchange(socket, frame(op, fields), what, timeout);
  const auto status = static_cast<StoreStatus>(answer.code);
  const bool has_text = !answer.fields.empty();
  if (status != StoreStatus::kDone && status != StoreStatus::kInvalid)
    throw CommError(fmt::format("store: {}: refused: {}", what, has_text ? answer.fields[0] : "without a reason"));
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(socket));
  }
  if (status == StoreStatus::kInvalid) throw InvalidArgument(has_text ? answer.fields[0] : "store: refused");
  return std::move(answer.fields);
}

namespace {

// The one field of an answer.
const std::string& only(const std::vector<std::string>& fields, const std::string& what) {
  if (fields.size() != 1) throw CommError(fmt::format("store: {}: an answer of {} fields, not 1", what, fields.size()));
  return fields[0];
}

}  // namespace

void UnixStore::set(const std::string& key, const std::string& value) {
  check_store_value(key, value);
  ask(StoreOp::kSet, {key, value}, "set " + quoted(key), timeout());
}

std::string UnixStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  check_store_key(key);
  const std::string what = "get " + quoted(key);
  return only(ask(StoreOp::kGet, {key}, what, timeout), what);
}

std::int64_t UnixStore::add(const std::string& key, std::int64_t amount) {
  check_store_key(key);
  const std::string what = "add to " + quoted(key);
  const auto fields = ask(StoreOp::kAdd, {key, std::to_string(amount)}, what, timeout());
  const std::string& text = only(fields, what);
  std::int64_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
  if (error != std::errc() || end != text.data() + text.size())
    throw CommError(fmt::format("store: {}: the answer {} is not a number", what, quoted(text)));
  return sum;
}

std::string UnixStore::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  check_store_value(key, expected);
  check_store_value(key, desired);
  const std::string what = "compare_set " + quoted(key);
  return only(ask(StoreOp::kCompareSet, {key, expected, desired}, what, timeout()), what);
}

void UnixStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  check_store_keys(keys);
  if (keys.empty()) return;
  const std::string others = keys.size() > 1 ? fmt::format(" and {} others", keys.size() - 1) : "";
  ask(StoreOp::kWait, keys, "wait for " + quoted(keys[0]) + others, timeout);
}

bool UnixStore::delete_key(const std::string& key) {
  check_store_key(key);
  const std::string what = "delete_key " + quoted(key);
  return only(ask(StoreOp::kDelete, {key}, what, timeout()), what) == "1";
}

Descriptor UnixStore::leave_will(const std::vector<std::string>& keys, const std::string& value) {
  std::vector<std::string> fields{value};
  fields.insert(fields.end(), keys.begin(), keys.end());
  Descriptor socket = take_connection(timeout());
  exchange(socket, frame(StoreOp::kWill, fields), "leave a will", timeout());
  return socket;
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
