#include "lockstep/parallel/rendezvous/endpoint_internal.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/socket_internal.h"

namespace lockstep::parallel {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

namespace {

// --- one host -------------------------------------------------------------------------------------------------------

constexpr milliseconds kBetweenScans{250};  // pause between two scans of the list of all sockets

class UnixEndpoint final : public Endpoint {
 public:
  explicit UnixEndpoint(UnixStoreOptions options) : options_(std::move(options)) {}

  Attempt host() override {
    if (Descriptor listener = listen_abstract(options_.socket))
      return {.store = std::make_shared<StoreServer>(std::move(listener),
                                                     StoreServerOptions{.job = options_.job, .is_one_host = true}),
              .is_host = true};
    if (errno != EADDRINUSE) throw CommError(fmt::format("rank 0 cannot listen: {}", reason(errno)));
    return {};
  }

  Attempt join(Deadline deadline) override {
    ConnectResult result = connect_unix(options_, deadline);
    if (result.outcome == ConnectOutcome::kConnected) return {.store = make_unix_store(options_, std::move(result))};
    note(result.outcome);
    const bool is_foreign =
        is_occupied_ || result.outcome == ConnectOutcome::kExhausted || result.outcome >= ConnectOutcome::kOtherUser;
    return {.failure = describe(result), .is_foreign = is_foreign};
  }

  std::string own_address() override { return "127.0.0.1"; }

 private:
  void note(ConnectOutcome outcome);
  std::string describe(const ConnectResult& result) const;

  UnixStoreOptions options_;
  ConnectOutcome last_ = ConnectOutcome::kConnected;  // outcome of the last attempts
  Clock::time_point since_, next_scan_;
  bool is_occupied_ = false;  // whether another program holds the address
};

// A store that starts holds the address briefly before it listens, and its queue is briefly full when many ranks
// connect at once. If either state lasts, the holder of the address is not a store.
void UnixEndpoint::note(ConnectOutcome outcome) {
  const Clock::time_point now = Clock::now();
  if (outcome != last_) {
    last_ = outcome;
    since_ = now;
    next_scan_ = now + kBetweenScans;
    is_occupied_ = false;
  }
  if (outcome == ConnectOutcome::kBusy) is_occupied_ = now - since_ > kHandshakeDeadline;
  if (outcome != ConnectOutcome::kNobody || now < next_scan_) return;
  next_scan_ = now + kBetweenScans;
  is_occupied_ = is_abstract_name_taken(options_.socket);
}

std::string UnixEndpoint::describe(const ConnectResult& result) const {
  const pid_t pid = result.server.pid;
  const bool is_busy = result.outcome == ConnectOutcome::kBusy;
  if (is_busy || is_occupied_)
    return fmt::format(
        "a process holds the address and {}: another program, or a rank 0 that was stopped as it started: socket @{}\n"
        "End it (ss -xap names it), or choose another MASTER_PORT",
        is_busy ? "accepts no connection" : "does not listen", options_.socket);
  switch (result.outcome) {
    case ConnectOutcome::kOtherUser:
      return fmt::format("the address belongs to process {} of user {}\nChoose another MASTER_PORT", pid,
                         result.server.uid);
    case ConnectOutcome::kOtherVersion:
      return fmt::format("process {} there runs another version of Lockstep (store protocol {}, here {})", pid,
                         result.detail, StoreHello::kVersion);
    case ConnectOutcome::kOtherJob:
      return fmt::format(
          "another job uses this address: process {}\nWait for its end, end it if it is a stale run, "
          "or choose another MASTER_PORT",
          pid);
    case ConnectOutcome::kExhausted:
      return fmt::format("rank 0 (process {}) cannot accept this rank's connection: {}", pid, result.detail);
    case ConnectOutcome::kSilent:
      return fmt::format("rank 0 (process {}) does not reply: is it stopped?", pid);
    default:
      return "rank 0 did not arrive";
  }
}

// --- several hosts --------------------------------------------------------------------------------------------------

// The time for each address in an attempt. It doubles up to a limit, as replies over a slow network take longer.
constexpr milliseconds kFirstAttempt{250}, kLongestAttempt{4000};

class TcpEndpoint final : public Endpoint {
 public:
  explicit TcpEndpoint(const Membership& own) : own_(own), credentials_(make_credentials(own.store, own.port)) {}

  Attempt host() override;
  Attempt join(Deadline deadline) override;
  std::string own_address() override;

 private:
  Membership own_;
  TcpCredentials credentials_;
  std::vector<TcpAddress> addresses_;  // of the host, from the last look-up
  milliseconds attempt_ = kFirstAttempt;
  // The most specific result of all attempts: rank 0 may have given up before the last one.
  ConnectOutcome worst_ = ConnectOutcome::kNobody;
  std::string reason_;
};

Attempt TcpEndpoint::host() {
  addresses_ = resolve(own_.host, own_.port);
  std::string error;
  if (Descriptor listener = listen_tcp(addresses_, error))
    return {.store = std::make_shared<StoreServer>(std::move(listener),
                                                   StoreServerOptions{.job = credentials_.id, .tls = credentials_.tls}),
            .is_host = true};
  const bool is_in_use = errno == EADDRINUSE;
  const Listener owner = is_in_use ? find_listener(own_.port) : Listener();
  LOCKSTEP_CHECK(owner.pid != ::getpid(),
                 "init_process_group: this process has a group at {} already\n"
                 "Destroy it first, cut it with split, or give the other group another port",
                 own_.address);
  std::string taken = fmt::format("rank 0 cannot listen at {}: {}", own_.port_name, error);
  if (owner.pid > 0) taken += fmt::format("; process {} ({}) listens there", owner.pid, owner.program);
  if (!is_in_use) throw CommError(taken + "\nMASTER_ADDR has to be an address of its host");
  return {.failure = taken + "\nEnd the process that has the port, or choose another port"};
}

Attempt TcpEndpoint::join(Deadline deadline) {
  addresses_ = resolve(own_.host, own_.port);
  TcpAddress reached;
  const milliseconds each = std::min(std::exchange(attempt_, std::min(2 * attempt_, kLongestAttempt)), deadline.left());
  ConnectResult result = connect_any(addresses_, credentials_, each, reached);
  if (result.outcome == ConnectOutcome::kConnected)
    return {.store = make_tcp_store(reached, credentials_, std::move(result))};
  if (reason_.empty() || result.outcome >= worst_) {
    worst_ = result.outcome;
    const bool is_nobody = worst_ == ConnectOutcome::kNobody;
    reason_ = describe_tcp(result, is_nobody ? own_.address : reached.to_string(), credentials_);
  }
  const std::string where = own_.port_name.empty() ? "" : fmt::format("no rank 0 of this job at {}: ", own_.port_name);
  return {.failure = where + reason_, .is_foreign = result.outcome >= ConnectOutcome::kOtherVersion};
}

std::string TcpEndpoint::own_address() {
  const std::string address = address_towards(addresses_);
  if (is_loopback(address))
    warn("rendezvous: loopback",
         fmt::format("rendezvous at {}: this host reaches it at {}, which other hosts cannot reach\n"
                     "MASTER_ADDR should be rank 0's address on the network",
                     own_.address, address));
  return address;
}

}  // namespace

std::unique_ptr<Endpoint> make_endpoint(const Membership& own) {
  if (own.is_one_host) return std::make_unique<UnixEndpoint>(own.local);
  return std::make_unique<TcpEndpoint>(own);
}

// --- the retry budget -----------------------------------------------------------------------------------------------

RetryBudget::RetryBudget(std::string where, milliseconds timeout, bool is_one_host)
    : where_(std::move(where)), timeout_(timeout), longest_pause_(is_one_host ? kConnectPoll : kLongestConnectPoll),
      end_(Clock::now() + timeout), deadline_(timeout) {}

std::shared_ptr<Store> RetryBudget::retry(Callback<Attempt()> attempt) {
  for (;;) {
    try {
      const Attempt result = attempt();
      if (result.store) return result.store;
      pause(result);
    } catch (const UnknownHost& error) {
      pause({.failure = error.what(), .longest = kLongestLookUp});
    }
  }
}

void RetryBudget::pause(const Attempt& failed) {
  if (!failed.failure.empty()) failure_ = failed.failure;
  if (!failed.is_foreign) foreign_since_.reset();
  if (failed.is_foreign && !foreign_since_) foreign_since_ = Clock::now();
  deadline_.waited(failed.longest);
  const bool is_late = deadline_.passed();
  if (failed.is_foreign && (is_late || Clock::now() - *foreign_since_ > kStaleRun))
    throw CommError(where_ + ": " + failure_);
  if (is_late) throw CommTimeout(fmt::format("{}: {} (after {} ms)", where_, failure_, timeout_.count()));
  std::this_thread::sleep_for(pause_);  // there is no notification when a process begins to listen
  pause_ = std::min(2 * pause_, longest_pause_);
}

milliseconds RetryBudget::time_left() const {
  return std::max(std::chrono::ceil<milliseconds>(end_ - Clock::now()), kAttempt);
}

}  // namespace lockstep::parallel
