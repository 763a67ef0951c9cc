#include "lockstep/parallel/rendezvous/store_client_internal.h"

#include <poll.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

namespace lockstep::parallel {

// --- one connection -------------------------------------------------------------------------------------------------

namespace {

// Sends a frame and receives the reply. kWouldBlock: the deadline has passed. If the connection is closed while the frame
// is sent, the server may have sent a reason before.
Transmission send_and_receive(Stream& stream, const std::string& frame, StoreMessage& reply, Deadline& deadline) {
  std::string bytes;
  Transmission transfer = send_all(stream, frame, deadline);
  if (transfer != Transmission::kWouldBlock) transfer = Transmission::kDone;
  while (transfer == Transmission::kDone && !first_frame(bytes, kMaxFrame))
    transfer = read_some(stream, bytes, kMaxFrame, deadline);
  if (transfer == Transmission::kDone) reply = read_message(*first_frame(bytes, kMaxFrame));
  return transfer;
}

// Between requests a readable socket means the end of the server or of the connection.
bool has_ended(const Stream& stream) {
  pollfd state{stream.socket().get(), POLLIN, 0};
  return uninterrupted([&] { return ::poll(&state, 1, 0); }) != 0;
}

std::string result_of(const StoreMessage& reply, const std::string& what) {
  const auto status = static_cast<StoreStatus>(reply.code);
  if (reply.fields.size() != 1)
    throw CommError(fmt::format("store: {}: a reply of {} fields, expected 1", what, reply.fields.size()));
  if (status == StoreStatus::kInvalid) throw InvalidArgument(reply.fields[0]);
  if (status != StoreStatus::kDone) throw CommError(fmt::format("store: {}: rejected: {}", what, reply.fields[0]));
  return reply.fields[0];
}

}  // namespace

ConnectResult say_hello(std::unique_ptr<Stream> stream, const JobId& job, Deadline& deadline) {
  ConnectResult out{.outcome = ConnectOutcome::kOtherJob};
  try {
    StoreMessage reply;
    const Transmission transfer = send_and_receive(*stream, frame(StoreHello{.job = job}), reply, deadline);
    const auto status = static_cast<StoreStatus>(reply.code);
    out.outcome = transfer == Transmission::kClosed       ? ConnectOutcome::kClosed
                  : transfer == Transmission::kWouldBlock ? ConnectOutcome::kSilent
                  : status == StoreStatus::kAccepted      ? ConnectOutcome::kConnected
                  : status == StoreStatus::kOtherVersion  ? ConnectOutcome::kOtherVersion
                  : status == StoreStatus::kExhausted     ? ConnectOutcome::kExhausted
                                                          : ConnectOutcome::kOtherJob;
    if (!reply.fields.empty()) out.detail = reply.fields[0];
  } catch (const TlsError& error) {
    out.detail = error.is_refusal() ? "the server rejected the key of this process" : error.what();
  } catch (const IoError& error) {  // another program
    out.detail = error.what();
  }
  if (out.outcome == ConnectOutcome::kConnected) out.stream = std::move(stream);
  return out;
}

// --- the client -----------------------------------------------------------------------------------------------------

StoreClient::StoreClient(std::string address, std::string holder, ConnectResult first, Connect connect)
    : address_(std::move(address)), holder_(std::move(holder)), server_id_(std::move(first.detail)),
      connect_(std::move(connect)) {
  idle_.push_back(std::move(first.stream));
}

std::unique_ptr<Stream> StoreClient::take_stream(const std::string& what, milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    while (!idle_.empty()) {
      std::unique_ptr<Stream> stream = std::move(idle_.back());
      idle_.pop_back();
      if (!has_ended(*stream)) return stream;
    }
  }
  return reconnect(what, timeout);
}

// A server that does not reply within kHandshakeDeadline is lost; within a shorter timeout of the caller it is late. A
// server that closes during the handshake may be rejecting connections because there are too many of them.
std::unique_ptr<Stream> StoreClient::reconnect(const std::string& what, milliseconds timeout) const {
  Deadline deadline(std::min<milliseconds>(timeout, kHandshakeDeadline));
  ConnectResult result = connect_(deadline);
  for (milliseconds pause = kConnectPoll; result.outcome == ConnectOutcome::kClosed && !deadline.passed();
       pause = std::min(2 * pause, kLongestConnectPoll)) {
    std::this_thread::sleep_for(pause);
    result = connect_(deadline);
  }
  // The address may belong to another group by now, with another table.
  if (result.outcome == ConnectOutcome::kConnected && result.detail != server_id_)
    raise_lost(what, "; another store has its place");
  if (result.outcome == ConnectOutcome::kConnected) return std::move(result.stream);
  if (result.outcome == ConnectOutcome::kExhausted)
    throw CommError(fmt::format("store: {}: {}, which holds the store at {}, cannot accept a connection: {}", what,
                                holder_, address_, result.detail));
  const bool is_nobody = result.outcome == ConnectOutcome::kNobody,
             is_closed = result.outcome == ConnectOutcome::kClosed;
  if ((is_nobody || result.outcome == ConnectOutcome::kSilent) && timeout < kHandshakeDeadline && deadline.passed())
    raise_silent(what, timeout);
  const bool has_reason = (is_nobody || is_closed) && !result.detail.empty();
  raise_lost(what, has_reason ? fmt::format(", or is cut off ({})", result.detail) : "");
}

void StoreClient::raise_lost(const std::string& what, const std::string& detail) const {
  throw CommError(
      fmt::format("store: {}: {}, which holds the store at {}, has left or died{}", what, holder_, address_, detail));
}

void StoreClient::raise_silent(const std::string& what, milliseconds timeout) const {
  throw CommTimeout(
      fmt::format("store: {}: {}, which holds the store at {}, does not reply within {} ms: is it stopped?", what,
                  holder_, address_, timeout.count()));
}

StoreMessage StoreClient::exchange(Stream& stream, const StoreRequest& request, const std::string& what,
                                   milliseconds timeout) const {
  Deadline deadline(timeout);
  StoreMessage reply;
  Transmission transfer{};
  try {
    transfer = send_and_receive(stream, frame(request), reply, deadline);
  } catch (const TlsError& error) {
    throw CommError(fmt::format("store: {}: {}: bytes were altered in transit: {}", what, address_, error.what()));
  } catch (const IoError& error) {
    throw CommError(fmt::format("store: {}: the reply cannot be parsed: {}", what, error.what()));
  }
  if (transfer == Transmission::kDone) return reply;
  if (transfer == Transmission::kClosed) raise_lost(what);
  if (!waits_for_keys(request.op)) raise_silent(what, timeout);
  throw CommTimeout(
      fmt::format("store: {}: no answer within {} ms from the store at {}", what, timeout.count(), address_));
}

// A connection becomes idle only after a whole exchange; closing it ends the wait on the server.
std::string StoreClient::request(const StoreRequest& request, milliseconds timeout) {
  check_store_request(request);
  const std::string what = describe(request);
  std::unique_ptr<Stream> stream = take_stream(what, timeout);
  const StoreMessage reply = exchange(*stream, request, what, timeout);
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(stream));
  }
  return result_of(reply, what);
}

namespace {

// The server executes the entry when the connection ends.
class ConnectionLastWill final : public LastWill {
 public:
  explicit ConnectionLastWill(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
  // An entry without keys replaces it. The server reads the request before it notices the end of the connection; the
  // reply is not read.
  void cancel() override {
    std::size_t sent = 0;
    try {
      stream_->send(frame(StoreRequest{.op = StoreOp::kLastWill, .values = {""}}), sent);
    } catch (const CommError&) {
      // The server has ended, and the entry with it.
    }
    stream_.reset();
  }

 private:
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<LastWill> StoreClient::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  const StoreRequest entry{.op = StoreOp::kLastWill, .keys = keys, .values = {value}};
  check_store_request(entry);
  const std::string what = describe(entry);
  std::unique_ptr<Stream> stream = take_stream(what, timeout());
  result_of(exchange(*stream, entry, what, timeout()), what);
  return std::make_unique<ConnectionLastWill>(std::move(stream));
}

// --- Unix sockets ---------------------------------------------------------------------------------------------------

ConnectResult connect_unix(const UnixStoreOptions& options, Deadline deadline) {
  Descriptor socket = connect_abstract(options.socket);
  if (!socket) {
    if (errno != ECONNREFUSED && errno != EAGAIN)
      throw CommError(fmt::format("store: {}: cannot connect: {}", options.address, reason(errno)));
    return {.outcome = errno == EAGAIN ? ConnectOutcome::kBusy : ConnectOutcome::kNobody};
  }
  const Peer server = peer_of(socket);
  ConnectResult out{.outcome = ConnectOutcome::kOtherUser};
  if (is_trusted(server)) out = say_hello(std::make_unique<Stream>(std::move(socket)), options.job, deadline);
  out.server = server;
  return out;
}

std::shared_ptr<StoreClient> make_unix_store(const UnixStoreOptions& options, ConnectResult result) {
  const std::string holder = fmt::format("rank 0 (process {})", result.server.pid);
  return std::make_shared<StoreClient>(options.address, holder, std::move(result),
                                       [options](Deadline deadline) { return connect_unix(options, deadline); });
}

}  // namespace lockstep::parallel
