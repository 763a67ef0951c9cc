#include "lockstep/parallel/rendezvous/store_client_internal.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/endpoint_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"

namespace lockstep::parallel {

using std::chrono::milliseconds;

// --- credentials ----------------------------------------------------------------------------------------------------

namespace {

constexpr const char* kTokenVariable = "LOCKSTEP_JOB_TOKEN";
constexpr std::size_t kShortToken = 16;

// Throws InvalidArgument if `options` authenticate and neither `options` nor the environment has a token.
void check_token(const TcpStoreOptions& options) {
  LOCKSTEP_CHECK(!options.authenticate || !options.token.empty() || environment(kTokenVariable),
                 "TcpStore: no token to authenticate with: neither .token nor the variable {} is set\n"
                 "Make one with lockstep-run --new-token and set it on all ranks,\n"
                 "or admit every process that reaches the port with .authenticate = false",
                 kTokenVariable);
}

}  // namespace

TcpCredentials make_credentials(const TcpStoreOptions& options, int port) {
  check_token(options);
  const std::string both = options.job + "\n" + options.name;
  const XXH128_hash_t hash = XXH3_128bits(both.data(), both.size());
  TcpCredentials out{.job = options.job, .id = {hash.low64, hash.high64}};
  if (!options.authenticate) {
    warn("TcpStore: plain",
         "TcpStore: .authenticate is false: the store is plain TCP, and every process that reaches its port can read "
         "and change it");
    return out;
  }
  const bool is_given = !options.token.empty();
  const std::string token = is_given ? options.token : environment(kTokenVariable).value_or("");
  out.token_source = is_given ? "the option .token" : fmt::format("the variable {}", kTokenVariable);
  if (token.size() < kShortToken)
    warn("TcpStore: short token",
         fmt::format("TcpStore: the token ({}) has {} bytes: a token that short can be guessed\n"
                     "Make one with lockstep-run --new-token",
                     out.token_source, token.size()));
  out.tls = TlsContext::make(derive_psk(token, {.job = options.job, .store = options.name, .port = port}));
  return out;
}

// --- one connection -------------------------------------------------------------------------------------------------

ConnectResult connect_tcp_store(const TcpAddress& address, const TcpCredentials& credentials, Deadline deadline) {
  ConnectResult out;
  Descriptor socket = connect_tcp(address, deadline, out.detail);
  if (!socket) return out;
  auto stream = credentials.tls ? credentials.tls->stream(std::move(socket), TlsRole::kClient)
                                : std::make_unique<Stream>(std::move(socket));
  out = say_hello(std::move(stream), credentials.id, deadline);
  if (out.outcome == ConnectOutcome::kClosed) out.detail = "the peer closed the connection during the handshake";
  return out;
}

ConnectResult connect_any(const std::vector<TcpAddress>& addresses, const TcpCredentials& credentials,
                          milliseconds each, TcpAddress& reached) {
  ConnectResult best;
  for (const TcpAddress& address : addresses) {
    ConnectResult result = connect_tcp_store(address, credentials, Deadline(each));
    const bool is_success = result.outcome == ConnectOutcome::kConnected;
    if (best.outcome == ConnectOutcome::kNobody && result.outcome == ConnectOutcome::kNobody) {
      best.detail += (best.detail.empty() ? "" : "; ") + result.detail;  // the reasons of all failures
    } else if (is_success || result.outcome > best.outcome) {
      best = std::move(result);
      reached = address;
    }
    if (is_success) break;
  }
  return best;
}

std::string describe_tcp(const ConnectResult& result, const std::string& where, const TcpCredentials& credentials) {
  const std::string own =
      credentials.tls ? fmt::format("with the token of {}", credentials.token_source) : "without authentication";
  switch (result.outcome) {
    case ConnectOutcome::kNobody:
      return fmt::format("no process listens there ({})", result.detail);
    case ConnectOutcome::kSilent:
      return fmt::format("{} accepts but does not reply", where);
    case ConnectOutcome::kClosed:
      return fmt::format(
          "{} closed the connection of this process, {}, job {}, before it replied\n"
          "It is busy with too many connections, it has no file descriptors, only one of the two sides authenticates, "
          "or it is another program",
          where, own, in_quotes(credentials.job));
    case ConnectOutcome::kOtherVersion:
      return fmt::format("{} runs another version of Lockstep (store protocol {}, here {})", where, result.detail,
                         StoreHello::kVersion);
    default:
      return fmt::format(
          "{} and this process, {}, job {}, are not of one job: {}\n"
          "Token or job differs, or another program has the port: give all ranks the same, or choose another port",
          where, own, in_quotes(credentials.job), result.detail);
  }
}

std::shared_ptr<StoreClient> make_tcp_store(const TcpAddress& address, const TcpCredentials& credentials,
                                            ConnectResult result) {
  return std::make_shared<StoreClient>(
      address.to_string(), "rank 0", std::move(result),
      [address, credentials](Deadline deadline) { return connect_tcp_store(address, credentials, deadline); });
}

// --- TcpStore -------------------------------------------------------------------------------------------------------

TcpStore::TcpStore(const std::string& host, int port, const TcpStoreOptions& options) {
  LOCKSTEP_CHECK(!host.empty() && port >= (options.is_server ? 0 : 1) && port <= 65535,
                 "TcpStore: {} port {}: expected a host and a port from 1 to 65535 (0 for a server: a free one)",
                 in_quotes(host), port);
  LOCKSTEP_CHECK(options.timeout.count() > 0, "TcpStore: the timeout is {} ms, expected more than 0",
                 options.timeout.count());
  check_token(options);
  set_timeout(options.timeout);
  port_ = port;
  const std::string asked = fmt::format("{}:{}", host, port);
  RetryBudget budget("TcpStore: " + asked, options.timeout, /*is_one_host=*/false);
  if (!options.is_server) {
    const auto endpoint =
        make_endpoint({.address = asked, .is_one_host = false, .host = host, .port = port, .store = options});
    store_ = budget.retry(
        [&] { return endpoint->join(Deadline(std::min<milliseconds>(budget.time_left(), kHandshakeDeadline))); });
    return;
  }
  store_ = budget.retry([&]() -> Attempt {
    std::string error;
    Descriptor listener = listen_tcp(resolve(host, port), error);
    if (!listener) throw CommError(fmt::format("TcpStore: cannot listen at {}: {}", asked, error));
    port_ = address_of(listener).port();
    const TcpCredentials credentials = make_credentials(options, port_);
    return {.store = std::make_shared<StoreServer>(std::move(listener),
                                                   StoreServerOptions{.job = credentials.id, .tls = credentials.tls})};
  });
}

std::string TcpStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  return store_->request(request, timeout);
}

std::unique_ptr<LastWill> TcpStore::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  store_->set_timeout(timeout());
  return store_->leave_last_will(keys, value);
}

}  // namespace lockstep::parallel
