#include "lockstep/parallel/rendezvous/store_client_internal.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_table_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

// --- bytes over a socket ------------------------------------------------------------------------------------------------

bool wait_for(const Descriptor& socket, short events, Deadline& deadline) {
  for (;;) {
    const std::chrono::milliseconds slice = deadline.slice();  // first: it may move the deadline
    pollfd ready{socket.get(), events, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(slice.count()));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR && errno != EAGAIN)
      throw CommError(fmt::format("store: cannot wait: {}", reason(errno)));
    if (deadline.passed()) return false;
  }
}

Outcome send_all(const Descriptor& socket, const std::string& bytes, Deadline& deadline) {
  std::size_t sent = 0;
  for (;;) {
    if (send_some(socket, bytes, sent) != Transmission::kWouldBlock) return Outcome::kAnswered;
    if (!wait_for(socket, POLLOUT, deadline)) return Outcome::kTimeout;
  }
}

Outcome read_some(const Descriptor& socket, std::string& into, std::size_t most, Deadline& deadline) {
  for (;;) {
    if (!wait_for(socket, POLLIN, deadline)) return Outcome::kTimeout;
    const Transmission transfer = receive_some(socket, into, most);
    if (transfer == Transmission::kClosed) return Outcome::kClosed;
    if (transfer == Transmission::kDone) return Outcome::kAnswered;
  }
}

// --- connections and questions ------------------------------------------------------------------------------------------

StoreClient::StoreClient(std::string address, std::string holder, StoreLink link, Connect connect)
    : address_(std::move(address)), holder_(std::move(holder)), connect_(std::move(connect)) {
  idle_.push_back(std::move(link));
}

namespace {

// Between questions nothing comes but the end: the server's, or that of a connection which was cut for too long.
bool link_has_ended(const StoreLink& link) {
  pollfd state{link.socket.get(), POLLIN, 0};
  return uninterrupted([&] { return ::poll(&state, 1, 0); }) != 0;
}

}  // namespace

StoreLink StoreClient::take_link(const std::string& what, milliseconds timeout) {
  std::optional<StoreLink> idle = take_idle_link(what);
  StoreLink link = idle ? std::move(*idle) : connect_anew(what, timeout);
  if (!link.is_of_server) make_sure_of_server(link, what, timeout);
  return link;
}

std::optional<StoreLink> StoreClient::take_idle_link(const std::string& what) {
  const std::lock_guard lock(mutex_);
  while (!idle_.empty()) {
    StoreLink link = std::move(idle_.back());
    idle_.pop_back();
    if (!link_has_ended(link)) return link;
    if (server_.empty()) raise_lost(what);  // who serves there now may be another
  }
  return std::nullopt;
}

// A server that does not answer for the whole of kHandshakeDeadline is lost; in a shorter time of the caller's it is late.
StoreLink StoreClient::connect_anew(const std::string& what, milliseconds timeout) {
  Deadline deadline(std::min<milliseconds>(timeout, kHandshakeDeadline));
  Greeting greeting = connect_(deadline);
  if (greeting.welcome == Welcome::kYes) return std::move(greeting.link);
  const bool is_silent = greeting.welcome == Welcome::kSilent || greeting.welcome == Welcome::kNobody;
  if (is_silent && timeout < kHandshakeDeadline && deadline.passed()) raise_late(what, timeout);
  if (greeting.welcome == Welcome::kExhausted)
    throw CommError(fmt::format("store: {}: {}, which holds the store at {}, cannot accept a connection: {}", what,
                                holder_, address_, greeting.detail));
  const bool has_reason =
      (greeting.welcome == Welcome::kNobody || greeting.welcome == Welcome::kGone) && !greeting.detail.empty();
  raise_lost(what, has_reason ? fmt::format(", or is cut off ({})", greeting.detail) : "");
}

// The address can be that of the next group by now, whose table is not this one.
void StoreClient::make_sure_of_server(StoreLink& link, const std::string& what, milliseconds timeout) {
  const StoreMessage answer = exchange(link, frame(StoreOp::kWho, {}), what, timeout, /*waits=*/false);
  if (static_cast<StoreStatus>(answer.code) != StoreStatus::kDone || answer.fields.size() != 1)
    throw CommError(fmt::format("store: {}: {} does not say which store it is", what, address_));
  const std::lock_guard lock(mutex_);
  if (server_.empty()) server_ = answer.fields[0];
  if (server_ != answer.fields[0]) raise_lost(what, "; another store has its place");
  link.is_of_server = true;
}

void StoreClient::raise_lost(const std::string& what, const std::string& detail) const {
  throw CommError(
      fmt::format("store: {}: {}, which holds the store at {}, has left or died{}", what, holder_, address_, detail));
}

void StoreClient::raise_late(const std::string& what, milliseconds timeout) const {
  throw CommTimeout(
      fmt::format("store: {}: no answer within {} ms from the store at {}", what, timeout.count(), address_));
}

// To what the server answers at once.
void StoreClient::raise_silent(const std::string& what, milliseconds timeout) const {
  throw CommTimeout(
      fmt::format("store: {}: {}, which holds the store at {}, does not answer within {} ms: is it stopped?", what,
                  holder_, address_, timeout.count()));
}

StoreMessage StoreClient::exchange(StoreLink& link, std::string request, const std::string& what, milliseconds timeout,
                                   bool waits) const {
  Deadline deadline(timeout);
  if (link.guard) link.guard->seal(request);
  Outcome outcome = send_all(link.socket, request, deadline);
  std::string answer;
  try {
    while (outcome == Outcome::kAnswered) {
      if (const auto content = first_opened(link.guard, answer, kMaxFrame)) return read_message(*content);
      outcome = read_some(link.socket, answer, kMaxFrame, deadline);
    }
  } catch (const FrameGuard::Forged& error) {
    throw CommError(fmt::format("{}: {}: {}", what, address_, error.what()));
  } catch (const IoError& error) {
    throw CommError(fmt::format("store: {}: the answer cannot be read: {}", what, error.what()));
  }
  if (outcome == Outcome::kClosed) raise_lost(what);
  waits ? raise_late(what, timeout) : raise_silent(what, timeout);
}

// A connection goes back only after a whole exchange; closing it ends the wait on the server.
std::vector<std::string> StoreClient::ask(StoreOp op, const std::vector<std::string>& fields, const std::string& what,
                                          milliseconds timeout) {
  StoreLink link = take_link(what, timeout);
  const bool waits = op == StoreOp::kGet || op == StoreOp::kWait;
  StoreMessage answer = exchange(link, frame(op, fields), what, timeout, waits);
  const auto status = static_cast<StoreStatus>(answer.code);
  const bool has_text = !answer.fields.empty();
  if (status != StoreStatus::kDone && status != StoreStatus::kInvalid)
    throw CommError(fmt::format("store: {}: refused: {}", what, has_text ? answer.fields[0] : "without a reason"));
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(link));
  }
  if (status == StoreStatus::kInvalid) throw InvalidArgument(has_text ? answer.fields[0] : "store: refused");
  return std::move(answer.fields);
}

// --- the calls of Store -------------------------------------------------------------------------------------------------

namespace {

// The one field of an answer.
const std::string& only(const std::vector<std::string>& fields, const std::string& what) {
  if (fields.size() != 1) throw CommError(fmt::format("store: {}: an answer of {} fields, not 1", what, fields.size()));
  return fields[0];
}

}  // namespace

void StoreClient::set(const std::string& key, const std::string& value, milliseconds timeout) {
  check_store_value(key, value);
  ask(StoreOp::kSet, {key, value}, "set " + in_quotes(key), timeout);
}

std::string StoreClient::get(const std::string& key, milliseconds timeout) {
  check_store_key(key);
  const std::string what = "get " + in_quotes(key);
  return only(ask(StoreOp::kGet, {key}, what, timeout), what);
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t amount, milliseconds timeout) {
  check_store_key(key);
  const std::string what = "add to " + in_quotes(key);
  const auto fields = ask(StoreOp::kAdd, {key, std::to_string(amount)}, what, timeout);
  const std::string& text = only(fields, what);
  std::int64_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
  if (error != std::errc() || end != text.data() + text.size())
    throw CommError(fmt::format("store: {}: the answer {} is not a number", what, in_quotes(text)));
  return sum;
}

std::string StoreClient::compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                     milliseconds timeout) {
  check_store_value(key, expected);
  check_store_value(key, desired);
  const std::string what = "compare_set " + in_quotes(key);
  return only(ask(StoreOp::kCompareSet, {key, expected, desired}, what, timeout), what);
}

void StoreClient::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  check_store_keys(keys);
  if (keys.empty()) return;
  const std::string others = keys.size() > 1 ? fmt::format(" and {} others", keys.size() - 1) : "";
  ask(StoreOp::kWait, keys, "wait for " + in_quotes(keys[0]) + others, timeout);
}

bool StoreClient::delete_key(const std::string& key, milliseconds timeout) {
  check_store_key(key);
  const std::string what = "delete_key " + in_quotes(key);
  return only(ask(StoreOp::kDelete, {key}, what, timeout), what) == "1";
}

namespace {

// The server carries it out when the connection ends.
class LinkWill final : public LastWill {
 public:
  explicit LinkWill(StoreLink link) : link_(std::move(link)) {}
  // A will of no keys takes its place. The server reads that before it notices the end of the connection, and nobody waits for
  // the answer.
  void cancel() override {
    std::string request = frame(StoreOp::kWill, {""});
    if (link_.guard) link_.guard->seal(request);
    std::size_t sent = 0;
    try {
      send_some(link_.socket, request, sent);
    } catch (const CommError&) {
      // The server is gone, and the will with it.
    }
    link_.socket.reset();
  }

 private:
  StoreLink link_;
};

}  // namespace

std::unique_ptr<LastWill> StoreClient::leave_last_will(const std::vector<std::string>& keys, const std::string& value,
                                                       milliseconds timeout) {
  check_store_keys(keys);
  for (const std::string& key : keys) check_store_value(key, value);
  std::vector<std::string> fields{value};
  fields.insert(fields.end(), keys.begin(), keys.end());
  const std::string what = "leave a last will";
  StoreLink link = take_link(what, timeout);
  exchange(link, frame(StoreOp::kWill, fields), what, timeout, /*waits=*/false);
  return std::make_unique<LinkWill>(std::move(link));
}

}  // namespace lockstep::parallel
