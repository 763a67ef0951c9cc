#include "lockstep/parallel/rendezvous/store_client_internal.h"

#include <poll.h>

#include <algorithm>
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
  StoreLink link = idle ? std::move(*idle) : reconnect(what, timeout);
  if (!link.is_of_server) verify_server(link, what, timeout);
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
StoreLink StoreClient::reconnect(const std::string& what, milliseconds timeout) {
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

// Another group may have the address by now, whose table is not this one.
void StoreClient::verify_server(StoreLink& link, const std::string& what, milliseconds timeout) {
  const std::string id = ask(link, {.op = StoreOp::kServerId}, timeout);
  const std::lock_guard lock(mutex_);
  if (server_.empty()) server_ = id;
  if (server_ != id) raise_lost(what, "; another store has its place");
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

StoreMessage StoreClient::exchange(StoreLink& link, const StoreRequest& request, milliseconds timeout) const {
  const std::string what = describe(request);
  Deadline deadline(timeout);
  std::string bytes = frame(request);
  if (link.guard) link.guard->seal(bytes);
  Outcome outcome = send_all(link.socket, bytes, deadline);
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
  waits_for_keys(request.op) ? raise_late(what, timeout) : raise_silent(what, timeout);
}

std::string StoreClient::ask(StoreLink& link, const StoreRequest& request, milliseconds timeout) const {
  StoreMessage answer = exchange(link, request, timeout);
  const auto status = static_cast<StoreStatus>(answer.code);
  if (answer.fields.size() != 1)
    throw CommError(fmt::format("store: {}: an answer of {} fields, not 1", describe(request), answer.fields.size()));
  if (status == StoreStatus::kInvalid) throw InvalidArgument(answer.fields[0]);
  if (status != StoreStatus::kDone)
    throw CommError(fmt::format("store: {}: refused: {}", describe(request), answer.fields[0]));
  return std::move(answer.fields[0]);
}

// A connection becomes idle only after a whole exchange; closing it ends the wait on the server.
std::string StoreClient::request(const StoreRequest& request, milliseconds timeout) {
  check_store_request(request);
  StoreLink link = take_link(describe(request), timeout);
  const auto keep = [&] {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(link));
  };
  try {
    std::string result = ask(link, request, timeout);
    keep();
    return result;
  } catch (const InvalidArgument&) {
    keep();
    throw;
  }
}

// --- last-will entries --------------------------------------------------------------------------------------------------

namespace {

// The server carries the entry out when the connection ends.
class LinkWill final : public LastWill {
 public:
  explicit LinkWill(StoreLink link) : link_(std::move(link)) {}
  // An entry of no keys replaces it. The server reads that before it notices the end of the connection, and nobody waits for
  // the answer.
  void cancel() override {
    std::string request = frame(StoreRequest{.op = StoreOp::kLastWill, .values = {""}});
    if (link_.guard) link_.guard->seal(request);
    std::size_t sent = 0;
    try {
      send_some(link_.socket, request, sent);
    } catch (const CommError&) {
      // The server is gone, and the entry with it.
    }
    link_.socket.reset();
  }

 private:
  StoreLink link_;
};

}  // namespace

std::unique_ptr<LastWill> StoreClient::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  const StoreRequest entry{.op = StoreOp::kLastWill, .keys = keys, .values = {value}};
  check_store_request(entry);
  StoreLink link = take_link(describe(entry), timeout());
  ask(link, entry, timeout());
  return std::make_unique<LinkWill>(std::move(link));
}

}  // namespace lockstep::parallel
