#include "lockstep/parallel/rendezvous/tcp_store.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/warning.h"

namespace lockstep::parallel {

namespace {

using std::chrono::milliseconds;

constexpr const char* kTokenVariable = "LOCKSTEP_JOB_TOKEN";
constexpr std::size_t kShortToken = 16;

// --- the server's side --------------------------------------------------------------------------------------------------

class TcpGate final : public StoreGate {
 public:
  TcpGate(std::string address, TcpIdentity identity) : address_(std::move(address)), identity_(std::move(identity)) {}

  std::unique_ptr<Handshake> greet(const Descriptor& socket) override {
    tune_tcp(socket);
    return std::make_unique<TcpServerHandshake>(identity_);
  }

  void turned_away(const Descriptor& socket, const std::string& why) override {
    try {
      warn("TcpStore: turned away",
           fmt::format("store: {}: turned a connection from {} away: {}", address_, peer_address_of(socket).to_string(),
                       why),
           /*limit=*/1);
    } catch (...) {
      // A handler of the program's must not end the store.
    }
  }

 private:
  std::string address_;
  TcpIdentity identity_;
};

// --- the client's side --------------------------------------------------------------------------------------------------

Welcome shake_hands(const Descriptor& socket, const TcpIdentity& identity, Deadline& deadline, Greeting& out) {
  TcpClientHandshake handshake(identity);
  std::string say = handshake.start(), heard;
  bool is_asked = false;  // for its proof
  for (;;) {
    Outcome outcome = send_all(socket, say, deadline);
    say.clear();
    if (outcome == Outcome::kAnswered) outcome = read_some(socket, heard, handshake.wanted(heard.size()), deadline);
    if (outcome == Outcome::kTimeout) return Welcome::kSilent;
    if (outcome == Outcome::kClosed) {
      out.detail = is_asked ? "it closed when it saw this process's proof"
                            : "it closed without an answer, as a store without file descriptors does, too";
      return is_asked ? Welcome::kOtherJob : Welcome::kGone;
    }
    Handshake::Step step = handshake.take(heard);
    if (step.state == Handshake::State::kKnown) {
      out.link.guard = std::move(step.guard);
      return Welcome::kYes;
    }
    is_asked = is_asked || !step.reply.empty();
    say = std::move(step.reply);
  }
}

}  // namespace

TcpIdentity identity_of(const TcpStoreOptions& options) {
  if (!options.authenticate) return {{}, {}, options.job};
  if (!options.token.empty()) return {options.token, "the option .token", options.job};
  const char* variable = std::getenv(kTokenVariable);
  LOCKSTEP_CHECK(variable && *variable,
                 "TcpStore: no token to authenticate with: neither .token nor the variable {} is set\n"
                 "Make one with lockstep-run --new-token and give it to all ranks,\n"
                 "or let anybody join who reaches the port, with .authenticate = false",
                 kTokenVariable);
  return {variable, fmt::format("the variable {}", kTokenVariable), options.job};
}

std::unique_ptr<StoreServer> serve_tcp(Descriptor listener, TcpIdentity identity) {
  if (!identity.token.empty() && identity.token.size() < kShortToken)
    warn("TcpStore: short token", fmt::format("TcpStore: the token ({}) has {} bytes: one that short can be guessed\n"
                                              "Make one with lockstep-run --new-token",
                                              identity.token_source, identity.token.size()));
  const std::string address = address_of(listener).to_string();
  return std::make_unique<StoreServer>(std::move(listener), std::make_unique<TcpGate>(address, std::move(identity)));
}

Greeting greet_tcp(const TcpAddress& address, const TcpIdentity& identity, Deadline deadline) {
  Greeting out;
  Descriptor socket = connect_tcp(address, deadline, out.detail);
  if (!socket) return out;
  try {
    out.welcome = shake_hands(socket, identity, deadline, out);
  } catch (const IoError& error) {
    out.welcome = Welcome::kOtherJob;
    out.detail = error.what();
  }
  if (out.welcome == Welcome::kYes) out.link.socket = std::move(socket);
  return out;
}

Greeting greet_any(const std::vector<TcpAddress>& addresses, const TcpIdentity& identity, milliseconds each,
                   TcpAddress& reached) {
  Greeting best;
  for (const TcpAddress& address : addresses) {
    Greeting greeting = greet_tcp(address, identity, Deadline(each));
    const bool is_success = greeting.welcome == Welcome::kYes;
    if (best.welcome == Welcome::kNobody && greeting.welcome == Welcome::kNobody) {
      best.detail += (best.detail.empty() ? "" : "; ") + greeting.detail;  // why each of them failed
    } else if (is_success || greeting.welcome > best.welcome) {
      best = std::move(greeting);
      reached = address;
    }
    if (is_success) break;
  }
  return best;
}

std::string describe_tcp(const Greeting& greeting, const std::string& where, const TcpIdentity& identity) {
  const std::string own =
      identity.token.empty() ? "without authentication" : fmt::format("with the token of {}", identity.token_source);
  switch (greeting.welcome) {
    case Welcome::kNobody:
      return fmt::format("nobody listens there ({})", greeting.detail);
    case Welcome::kSilent:
      return fmt::format("{} accepts and does not answer", where);
    default:
      return fmt::format(
          "{} and this process, {}, job {}, are not of one job: {}\n"
          "Token or job differs, or another program has the port: give all ranks the same, or choose another port",
          where, own, in_quotes(identity.job), greeting.detail);
  }
}

// --- one connection that has to come about ------------------------------------------------------------------------------

// What is not of our job may be about to end, or it was too busy to hear us out.
Greeting reach_tcp(const std::vector<TcpAddress>& addresses, const TcpIdentity& identity, milliseconds timeout,
                   const std::string& asked, TcpAddress& reached) {
  Deadline deadline(timeout);
  const auto end = Deadline::Clock::now() + timeout;
  std::optional<Deadline> patience;
  milliseconds pause = kConnectPoll;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Deadline::Clock::now());
    const milliseconds each = std::clamp<milliseconds>(left, kAttempt, kHandshakeDeadline);
    Greeting greeting = greet_any(addresses, identity, each, reached);
    if (greeting.welcome == Welcome::kYes) return greeting;
    if (patience) patience->waited(each * static_cast<int>(addresses.size()));
    const bool is_foreign = greeting.welcome == Welcome::kOtherJob, is_gone = greeting.welcome == Welcome::kGone;
    if (!is_foreign && !is_gone) patience.reset();
    if (!patience && (is_foreign || is_gone)) patience.emplace(is_foreign ? kStaleRun : kHandshakeDeadline);
    const std::string where = is_foreign || is_gone ? reached.to_string() : asked;
    deadline.waited(each * static_cast<int>(addresses.size()));
    if (patience && patience->passed()) throw CommError("TcpStore: " + describe_tcp(greeting, where, identity));
    if (deadline.passed())
      throw CommTimeout(fmt::format("TcpStore: {}: no store within {} ms: {}", asked, timeout.count(),
                                    describe_tcp(greeting, where, identity)));
    std::this_thread::sleep_for(pause);  // nothing tells that somebody begins to listen
    pause = std::min(2 * pause, kLongestConnectPoll);
  }
}

std::shared_ptr<TcpStore> TcpMeeting::make(const TcpAddress& address, TcpIdentity identity, Greeting greeting,
                                           std::unique_ptr<StoreServer> server) {
  auto state = std::make_unique<TcpStore::State>();
  state->address = address;
  state->identity = std::move(identity);
  state->server = std::move(server);
  state->connect(std::move(greeting));
  return std::shared_ptr<TcpStore>(new TcpStore(std::move(state)));
}

void TcpStore::State::connect(Greeting greeting) {
  client = std::make_unique<StoreClient>(address.to_string(), "rank 0", std::move(greeting.link),
                                         [this](Deadline deadline) { return greet_tcp(address, identity, deadline); });
}

TcpStore::TcpStore(std::unique_ptr<State> state) : state_(std::move(state)) {}

TcpStore::TcpStore(const std::string& host, int port, const TcpStoreOptions& options)
    : state_(std::make_unique<State>()) {
  LOCKSTEP_CHECK(!host.empty() && port >= (options.is_server ? 0 : 1) && port <= 65535,
                 "TcpStore: {} port {}: expected a host and a port from 1 to 65535 (0 for a server: a free one)",
                 in_quotes(host), port);
  LOCKSTEP_CHECK(options.timeout.count() > 0, "TcpStore: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  set_timeout(options.timeout);
  const std::string asked = fmt::format("{}:{}", host, port);
  state_->identity = identity_of(options);
  Deadline deadline(options.timeout);
  std::vector<TcpAddress> addresses;
  try {
    addresses = resolve(host, port, deadline);
  } catch (CommTimeout& error) {
    error.add_context(fmt::format("TcpStore: {}: not resolved within {} ms", asked, options.timeout.count()));
    throw;
  }
  if (options.is_server) {
    std::string error;
    Descriptor listener = listen_tcp(addresses, error);
    if (!listener) throw CommError(fmt::format("TcpStore: cannot listen at {}: {}", asked, error));
    addresses = {address_of(listener)};
    state_->server = serve_tcp(std::move(listener), state_->identity);
  }
  state_->connect(reach_tcp(addresses, state_->identity, options.timeout, asked, state_->address));
}

TcpStore::~TcpStore() = default;

int TcpStore::port() const { return state_->address.port(); }

std::string TcpStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  return state_->client->request(request, timeout);
}

std::unique_ptr<LastWill> TcpStore::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  state_->client->set_timeout(timeout());
  return state_->client->leave_last_will(keys, value);
}

}  // namespace lockstep::parallel
