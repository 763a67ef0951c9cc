#include "lockstep/parallel/rendezvous/store_client_internal.h"

#include <poll.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

// --- bytes over a socket --------------------------------------------------------------------------------------------

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

Outcome send_all(Stream& stream, const std::string& bytes, Deadline& deadline) {
  std::size_t sent = 0;
  for (;;) {
    if (stream.send(bytes, sent) != Transmission::kWouldBlock) return Outcome::kAnswered;
    if (!wait_for(stream.socket(), stream.events(POLLOUT), deadline)) return Outcome::kTimeout;
  }
}

// Reads first without waiting: the stream may hold bytes that are no longer in its socket.
Outcome read_some(Stream& stream, std::string& into, std::size_t most, Deadline& deadline) {
  for (;;) {
    const Transmission transfer = stream.receive(into, most);
    if (transfer == Transmission::kClosed) return Outcome::kClosed;
    if (transfer == Transmission::kDone) return Outcome::kAnswered;
    if (!wait_for(stream.socket(), stream.events(POLLIN), deadline)) return Outcome::kTimeout;
  }
}

// --- connections ----------------------------------------------------------------------------------------------------

namespace {

ConnectOutcome outcome_of(std::uint8_t status) {
  switch (static_cast<StoreStatus>(status)) {
    case StoreStatus::kWelcome:
      return ConnectOutcome::kConnected;
    case StoreStatus::kOtherVersion:
      return ConnectOutcome::kOtherVersion;
    case StoreStatus::kExhausted:
      return ConnectOutcome::kExhausted;
    default:
      return ConnectOutcome::kOtherJob;
  }
}

// Between requests a readable socket means the end of the server or of the connection.
bool has_ended(const StoreConnection& connection) {
  pollfd state{connection.stream->socket().get(), POLLIN, 0};
  return uninterrupted([&] { return ::poll(&state, 1, 0); }) != 0;
}

}  // namespace

ConnectResult say_hello(std::unique_ptr<Stream> stream, const JobId& job, Deadline& deadline) {
  ConnectResult out;
  try {
    std::string answer;
    Outcome outcome = send_all(*stream, frame(StoreHello{.job = job}), deadline);
    while (outcome == Outcome::kAnswered && !first_frame(answer, kMaxFrame))
      outcome = read_some(*stream, answer, kMaxFrame, deadline);
    if (outcome != Outcome::kAnswered) {
      out.outcome = outcome == Outcome::kClosed ? ConnectOutcome::kClosed : ConnectOutcome::kSilent;
      return out;
    }
    StoreMessage message = read_message(*first_frame(answer, kMaxFrame));
    out.outcome = outcome_of(message.code);
    if (!message.fields.empty()) out.detail = std::move(message.fields[0]);
  } catch (const TlsError& error) {
    out.outcome = ConnectOutcome::kOtherJob;
    out.detail = error.is_refusal() ? "the server rejected the key of this process" : error.what();
  } catch (const IoError& error) {  // another program
    out.outcome = ConnectOutcome::kOtherJob;
    out.detail = error.what();
  }
  if (out.outcome == ConnectOutcome::kConnected) out.connection.stream = std::move(stream);
  return out;
}

StoreClient::StoreClient(std::string address, std::string holder, StoreConnection first, Connect connect)
    : address_(std::move(address)), holder_(std::move(holder)), connect_(std::move(connect)) {
  idle_.push_back(std::move(first));
}

StoreClient::StoreClient(std::string address, std::unique_ptr<StoreServer> server)
    : held_(std::move(server)), address_(std::move(address)), holder_("this process") {
  connect_ = [store = held_.get()](Deadline) {
    ConnectResult out{.outcome = ConnectOutcome::kConnected};
    out.connection.stream = store->connect();
    return out;
  };
  idle_.push_back(connect_(Deadline(kAttempt)).connection);
}

StoreConnection StoreClient::take_connection(const std::string& what, milliseconds timeout) {
  std::optional<StoreConnection> idle = take_idle(what);
  StoreConnection connection = idle ? std::move(*idle) : reconnect(what, timeout);
  if (!connection.is_verified) verify_server(connection, what, timeout);
  return connection;
}

std::optional<StoreConnection> StoreClient::take_idle(const std::string& what) {
  const std::lock_guard lock(mutex_);
  while (!idle_.empty()) {
    StoreConnection connection = std::move(idle_.back());
    idle_.pop_back();
    if (!has_ended(connection)) return connection;
    if (server_.empty()) raise_lost(what);  // the address may have another store by now
  }
  return std::nullopt;
}

// A server that closes during the handshake may be rejecting connections because there are too many of them.
ConnectResult StoreClient::try_to_connect(Deadline& deadline) const {
  for (milliseconds pause = kConnectPoll;; pause = std::min(2 * pause, kLongestConnectPoll)) {
    ConnectResult result = connect_(deadline);
    if (result.outcome != ConnectOutcome::kClosed || deadline.passed()) return result;
    std::this_thread::sleep_for(pause);
  }
}

// A server that does not reply within kHandshakeDeadline is lost; within a shorter timeout of the caller it is late.
StoreConnection StoreClient::reconnect(const std::string& what, milliseconds timeout) const {
  Deadline deadline(std::min<milliseconds>(timeout, kHandshakeDeadline));
  ConnectResult result = try_to_connect(deadline);
  if (result.outcome == ConnectOutcome::kConnected) return std::move(result.connection);
  const bool is_nobody = result.outcome == ConnectOutcome::kNobody,
             is_closed = result.outcome == ConnectOutcome::kClosed;
  if ((is_nobody || result.outcome == ConnectOutcome::kSilent) && timeout < kHandshakeDeadline && deadline.passed())
    raise_late(what, timeout);
  if (result.outcome == ConnectOutcome::kExhausted)
    throw CommError(fmt::format("store: {}: {}, which holds the store at {}, cannot accept a connection: {}", what,
                                holder_, address_, result.detail));
  const bool has_reason = (is_nobody || is_closed) && !result.detail.empty();
  raise_lost(what, has_reason ? fmt::format(", or is cut off ({})", result.detail) : "");
}

// The address may belong to another group by now, with another table.
void StoreClient::verify_server(StoreConnection& connection, const std::string& what, milliseconds timeout) {
  const std::string id = ask(connection, {.op = StoreOp::kServerId}, what, timeout);
  const std::lock_guard lock(mutex_);
  if (server_.empty()) server_ = id;
  if (server_ != id) raise_lost(what, "; another store has its place");
  connection.is_verified = true;
}

void StoreClient::raise_lost(const std::string& what, const std::string& detail) const {
  throw CommError(
      fmt::format("store: {}: {}, which holds the store at {}, has left or died{}", what, holder_, address_, detail));
}

void StoreClient::raise_late(const std::string& what, milliseconds timeout) const {
  throw CommTimeout(
      fmt::format("store: {}: no answer within {} ms from the store at {}", what, timeout.count(), address_));
}

// For requests to which the server replies without waiting.
void StoreClient::raise_silent(const std::string& what, milliseconds timeout) const {
  throw CommTimeout(
      fmt::format("store: {}: {}, which holds the store at {}, does not reply within {} ms: is it stopped?", what,
                  holder_, address_, timeout.count()));
}

StoreMessage StoreClient::exchange(StoreConnection& connection, const StoreRequest& request, const std::string& what,
                                   milliseconds timeout) const {
  Deadline deadline(timeout);
  std::string answer;
  try {
    Outcome outcome = send_all(*connection.stream, frame(request), deadline);
    while (outcome == Outcome::kAnswered) {
      if (const auto content = first_frame(answer, kMaxFrame)) return read_message(*content);
      outcome = read_some(*connection.stream, answer, kMaxFrame, deadline);
    }
    if (outcome == Outcome::kClosed) raise_lost(what);
  } catch (const TlsError& error) {
    throw CommError(fmt::format("store: {}: {}: bytes were altered in transit: {}", what, address_, error.what()));
  } catch (const IoError& error) {
    throw CommError(fmt::format("store: {}: the reply cannot be parsed: {}", what, error.what()));
  }
  waits_for_keys(request.op) ? raise_late(what, timeout) : raise_silent(what, timeout);
}

std::string StoreClient::ask(StoreConnection& connection, const StoreRequest& request, const std::string& what,
                             milliseconds timeout) const {
  StoreMessage answer = exchange(connection, request, what, timeout);
  const auto status = static_cast<StoreStatus>(answer.code);
  if (answer.fields.size() != 1)
    throw CommError(fmt::format("store: {}: a reply of {} fields, expected 1", what, answer.fields.size()));
  if (status == StoreStatus::kInvalid) throw InvalidArgument(answer.fields[0]);
  if (status != StoreStatus::kDone) throw CommError(fmt::format("store: {}: rejected: {}", what, answer.fields[0]));
  return std::move(answer.fields[0]);
}

// A connection becomes idle only after a whole exchange; closing it ends the wait on the server.
std::string StoreClient::request(const StoreRequest& request, milliseconds timeout) {
  check_store_request(request);
  const std::string what = describe(request);
  StoreConnection connection = take_connection(what, timeout);
  const auto keep = [&] {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(connection));
  };
  try {
    std::string result = ask(connection, request, what, timeout);
    keep();
    return result;
  } catch (const InvalidArgument&) {
    keep();
    throw;
  }
}

// --- last-will entries ----------------------------------------------------------------------------------------------

namespace {

// The server executes the entry when the connection ends.
class ConnectionWill final : public LastWill {
 public:
  explicit ConnectionWill(StoreConnection connection) : connection_(std::move(connection)) {}
  // An entry without keys replaces it. The server reads the request before it notices the end of the connection; the
  // reply is not read.
  void cancel() override {
    std::size_t sent = 0;
    try {
      connection_.stream->send(frame(StoreRequest{.op = StoreOp::kLastWill, .values = {""}}), sent);
    } catch (const CommError&) {
      // The server has ended, and the entry with it.
    }
    connection_.stream.reset();
  }

 private:
  StoreConnection connection_;
};

}  // namespace

std::unique_ptr<LastWill> StoreClient::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  const StoreRequest entry{.op = StoreOp::kLastWill, .keys = keys, .values = {value}};
  check_store_request(entry);
  const std::string what = describe(entry);
  StoreConnection connection = take_connection(what, timeout());
  ask(connection, entry, what, timeout());
  return std::make_unique<ConnectionWill>(std::move(connection));
}

}  // namespace lockstep::parallel
