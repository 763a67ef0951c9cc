#include "lockstep/parallel/rendezvous/unix_store_internal.h"

#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

// --- the server's side --------------------------------------------------------------------------------------------------

class UnixHandshake final : public Handshake {
 public:
  explicit UnixHandshake(const JobId& job) : job_(job) {}

  std::size_t wanted(std::size_t have) const override { return kMaxHelloBytes - have; }

  // A client waits for the answer before it asks, so nothing may follow its hello.
  Step take(std::string& in) override {
    const auto content = first_frame(in, kMaxHelloBytes - kFrameHeader);
    if (!content) return {};
    if (in.size() > kFrameHeader + content->size()) throw IoError("store: bytes follow a hello");
    const StoreHello hello = read_hello(*content);
    in.clear();
    if (hello.version != StoreHello::kVersion)
      return refuse(StoreStatus::kOtherVersion, {std::to_string(StoreHello::kVersion)});
    if (hello.job != job_) return refuse(StoreStatus::kOtherJob, {});
    return {State::kKnown, frame(StoreStatus::kWelcome)};
  }

 private:
  static Step refuse(StoreStatus status, const std::vector<std::string>& fields) {
    return {State::kRefused, frame(status, fields)};
  }

  JobId job_;
};

// The kernel says whose process is there.
class UnixGate final : public StoreGate {
 public:
  explicit UnixGate(const JobId& job) : job_(job) {}
  std::unique_ptr<Handshake> greet(const Descriptor& socket) override {
    return is_trusted(peer_of(socket)) ? std::make_unique<UnixHandshake>(job_) : nullptr;
  }
  void refuse(const Descriptor& socket, const std::string& why) override {
    std::size_t sent = 0;  // a few bytes always fit into a new socket's buffer
    if (is_trusted(peer_of(socket))) send_some(socket, frame(StoreStatus::kExhausted, {why}), sent);
  }

 private:
  JobId job_;
};

// --- the client's side --------------------------------------------------------------------------------------------------

Welcome to_welcome(std::uint8_t code) {
  switch (static_cast<StoreStatus>(code)) {
    case StoreStatus::kWelcome:
      return Welcome::kYes;
    case StoreStatus::kOtherVersion:
      return Welcome::kOtherVersion;
    case StoreStatus::kExhausted:
      return Welcome::kExhausted;
    default:
      return Welcome::kOtherJob;
  }
}

}  // namespace

UnixStoreServer::UnixStoreServer(Descriptor listener, const JobId& job)
    : server_(std::move(listener), std::make_unique<UnixGate>(job)) {}

Greeting greet(const UnixStoreOptions& options, Deadline deadline) {
  Greeting out;
  Descriptor socket = connect_abstract(options.socket);
  if (!socket) {
    if (errno != ECONNREFUSED && errno != EAGAIN)
      throw CommError(fmt::format("store: {}: cannot connect: {}", options.address, reason(errno)));
    out.welcome = errno == EAGAIN ? Welcome::kBusy : Welcome::kNobody;
    return out;
  }
  out.server = peer_of(socket);
  out.welcome = Welcome::kOtherUser;
  if (!is_trusted(out.server)) return out;

  const StoreHello hello{.job = options.job};
  std::string answer;
  try {
    Outcome outcome = send_all(socket, frame(hello), deadline);
    while (outcome == Outcome::kAnswered && !first_frame(answer, kMaxFrame))
      outcome = read_some(socket, answer, kMaxFrame, deadline);
    out.welcome = outcome == Outcome::kClosed ? Welcome::kGone : Welcome::kSilent;
    if (outcome != Outcome::kAnswered) return out;
    StoreMessage message = read_message(*first_frame(answer, kMaxFrame));
    out.welcome = to_welcome(message.code);
    if (!message.fields.empty()) out.detail = std::move(message.fields[0]);
  } catch (const IoError&) {
    out.welcome = Welcome::kOtherJob;  // some other program
  }
  if (out.welcome == Welcome::kYes) out.link.socket = std::move(socket);
  return out;
}

UnixStore::UnixStore(UnixStoreOptions options, Greeting greeting, std::unique_ptr<UnixStoreServer> server)
    : server_(std::move(server)),
      client_(options.address, fmt::format("rank 0 (process {})", greeting.server.pid), std::move(greeting.link),
              [options](Deadline deadline) { return greet(options, deadline); }) {}

UnixStore::~UnixStore() = default;

std::string UnixStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  return client_.request(request, timeout);
}

std::unique_ptr<LastWill> UnixStore::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  client_.set_timeout(timeout());
  return client_.leave_last_will(keys, value);
}

}  // namespace lockstep::parallel
