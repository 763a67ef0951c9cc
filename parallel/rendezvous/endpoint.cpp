// The rendezvous at an endpoint, where rank 0 serves a store: an abstract Unix socket on one host, a TCP port of rank 0
// between hosts.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"

namespace lockstep::parallel {

namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

// One attempt to get a store.
struct Attempt {
  std::shared_ptr<Store> store = nullptr;
  bool is_host = false;                       // the store is in this process
  std::string failure = {};                   // the reason, if there is no store; empty: unknown
  bool is_foreign = false;                    // the endpoint belongs to another job, which may be ending
  milliseconds longest = kHandshakeDeadline;  // longest duration of the attempt
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // Both throw UnknownHost if a retry may succeed, CommError if the address cannot be used at all.
  // For rank 0: serves a store at the endpoint and joins it. No store if another process has the address.
  virtual Attempt host() = 0;
  // Tries once to join the store at the endpoint.
  virtual Attempt join(Deadline deadline) = 0;
  // This host's address on the network to the other ranks.
  virtual std::string own_address() = 0;
};

// --- one host -------------------------------------------------------------------------------------------------------

constexpr milliseconds kBetweenLooks{250};  // pause between two scans of the list of all sockets

class UnixEndpoint final : public Endpoint {
 public:
  explicit UnixEndpoint(const Place& place)
      : options_{.socket = place.socket, .address = place.address, .job = place.job} {}

  Attempt host() override {
    Descriptor listener = listen_abstract(options_.socket);
    if (listener)
      return {.store = std::make_shared<StoreServer>(std::move(listener),
                                                     StoreServerOptions{.job = options_.job, .is_one_host = true}),
              .is_host = true};
    if (errno != EADDRINUSE) throw CommError(fmt::format("rank 0 cannot listen: {}", reason(errno)));
    return {};
  }

  Attempt join(Deadline deadline) override {
    ConnectResult result = connect_unix(options_, deadline);
    if (result.outcome == ConnectOutcome::kConnected) return {.store = make_unix_store(options_, std::move(result))};
    look_at(result.outcome);
    const bool is_foreign =
        is_squatted_ || result.outcome == ConnectOutcome::kExhausted || result.outcome >= ConnectOutcome::kOtherUser;
    return {.failure = describe(result), .is_foreign = is_foreign};
  }

  std::string own_address() override { return "127.0.0.1"; }

 private:
  void look_at(ConnectOutcome outcome);
  std::string describe(const ConnectResult& result) const;

  UnixStoreOptions options_;
  ConnectOutcome last_ = ConnectOutcome::kConnected;  // outcome of the last attempts
  Clock::time_point since_, next_look_;
  bool is_squatted_ = false;  // whether another program holds the address
};

// A store that starts holds the address briefly before it listens, and its queue is briefly full when many ranks
// connect at once. If either state lasts, the holder of the address is not a store.
void UnixEndpoint::look_at(ConnectOutcome outcome) {
  const Clock::time_point now = Clock::now();
  if (outcome != last_) {
    last_ = outcome;
    since_ = now;
    next_look_ = now + kBetweenLooks;
    is_squatted_ = false;
  }
  if (outcome == ConnectOutcome::kBusy) is_squatted_ = now - since_ > kHandshakeDeadline;
  if (outcome != ConnectOutcome::kNobody || now < next_look_) return;
  next_look_ = now + kBetweenLooks;
  is_squatted_ = is_abstract_name_taken(options_.socket);
}

std::string UnixEndpoint::describe(const ConnectResult& result) const {
  const pid_t pid = result.server.pid;
  const bool is_busy = result.outcome == ConnectOutcome::kBusy;
  if (is_busy || is_squatted_)
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
  explicit TcpEndpoint(const Place& place)
      : place_(place),
        credentials_(make_credentials(
            {.token = place.token, .authenticate = place.authenticate, .job = place.job_text, .name = place.store_name},
            place.port)) {}

  Attempt host() override;
  Attempt join(Deadline deadline) override;
  std::string own_address() override;

 private:
  void look_up() { addresses_ = resolve(place_.host, place_.port); }

  Place place_;
  TcpCredentials credentials_;
  std::vector<TcpAddress> addresses_;  // of the host, from the last look-up
  milliseconds attempt_ = kFirstAttempt;
  // The most specific result of all attempts: rank 0 may have given up before the last one.
  ConnectOutcome worst_ = ConnectOutcome::kNobody;
  std::string told_;
};

Attempt TcpEndpoint::host() {
  look_up();
  std::string error;
  Descriptor listener = listen_tcp(addresses_, error);
  if (listener)
    return {.store = std::make_shared<StoreServer>(std::move(listener),
                                                   StoreServerOptions{.job = credentials_.id, .tls = credentials_.tls}),
            .is_host = true};
  const bool is_in_use = errno == EADDRINUSE;
  const Listener owner = is_in_use ? find_listener(place_.port) : Listener();
  LOCKSTEP_CHECK(owner.pid != ::getpid(),
                 "init_process_group: this process has a group at {} already\n"
                 "Destroy it first, cut it with split, or give the other group another port",
                 place_.address);
  std::string taken = fmt::format("rank 0 cannot listen at {}: {}", place_.port_name, error);
  if (owner.pid > 0) taken += fmt::format("; process {} ({}) listens there", owner.pid, owner.program);
  if (!is_in_use) throw CommError(taken + "\nMASTER_ADDR has to be an address of its host");
  return {.failure = taken + "\nEnd the process that has the port, or choose another port"};
}

Attempt TcpEndpoint::join(Deadline deadline) {
  look_up();
  TcpAddress reached;
  const milliseconds each = std::min(std::exchange(attempt_, std::min(2 * attempt_, kLongestAttempt)), deadline.left());
  ConnectResult result = connect_any(addresses_, credentials_, each, reached);
  if (result.outcome == ConnectOutcome::kConnected)
    return {.store = make_tcp_store(reached, credentials_, std::move(result))};
  if (told_.empty() || result.outcome >= worst_) {
    worst_ = result.outcome;
    const bool is_nobody = worst_ == ConnectOutcome::kNobody;
    told_ = describe_tcp(result, is_nobody ? place_.address : reached.to_string(), credentials_);
  }
  return {.failure = fmt::format("no rank 0 of this job at {}: {}", place_.port_name, told_)};
}

std::string TcpEndpoint::own_address() {
  const std::string own = address_towards(addresses_);
  if (is_loopback(own))
    warn("rendezvous: loopback",
         fmt::format("rendezvous at {}: this host reaches it at {}, which other hosts cannot reach\n"
                     "MASTER_ADDR should be rank 0's address on the network",
                     place_.address, own));
  return own;
}

// --- all ranks -------------------------------------------------------------------------------------------------------

std::unique_ptr<Endpoint> make_endpoint(const Place& place) {
  if (place.is_one_host) return std::make_unique<UnixEndpoint>(place);
  return std::make_unique<TcpEndpoint>(place);
}

constexpr const char* kCallPrefix = "rendezvous/";
constexpr milliseconds kFinalRequest{300};  // limit of the final request: enough for a slow network

std::string confirmed_key(int rank) { return fmt::format("confirmed/{}", rank); }

// At least kAttempt, so that a request just before the end receives its reply.
milliseconds time_left(Clock::time_point end) {
  return std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), kAttempt);
}

class EndpointRendezvous {
 public:
  EndpointRendezvous(const RendezvousOptions& options, const Place& place)
      : place_(place), backend_(options.backend), where_("rendezvous at " + place.address), timeout_(options.timeout),
        end_(Clock::now() + timeout_), endpoint_(make_endpoint(place)), deadline_(timeout_) {}

  Rendezvous run() {
    for (;;) {
      Attempt attempt = connect();
      if (attempt.store && enter(attempt)) break;
      pause(attempt);
    }
    // After the timeout, requests are short: a disconnected host receives no reply.
    if (place_.rank != 0) calls_->set_timeout(kFinalRequest);
    registration_->wait_for_all(time_left(end_), timeout_);
    store_->set_timeout(timeout_);
    try {
      confirm_outcome();
    } catch (const CommError& error) {
      watch_->pass_on(error);
      throw;
    }
    return {.rank = place_.rank,
            .size = place_.size,
            .store = std::move(store_),
            .address = endpoint_->own_address(),
            .watch = std::move(watch_)};
  }

 private:
  Attempt connect();
  Attempt join() { return endpoint_->join(Deadline(std::min<milliseconds>(time_left(end_), kHandshakeDeadline))); }
  Attempt join_other_host(const std::string& taken);
  bool enter(Attempt& attempt);
  void check_earlier(Attempt& attempt) const;
  void pause(const Attempt& attempt);
  void confirm_outcome();

  Place place_;
  std::string backend_, where_;
  milliseconds timeout_;
  Clock::time_point end_;
  std::unique_ptr<Endpoint> endpoint_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<PrefixStore> calls_;
  std::shared_ptr<FormationWatch> watch_;
  std::optional<Registration> registration_;
  // The retry budget:
  Deadline deadline_;
  milliseconds pause_ = kConnectPoll;
  std::string failure_ = "rank 0 did not arrive";  // of the last attempt
  std::optional<Clock::time_point> foreign_since_;
};

Attempt EndpointRendezvous::connect() {
  try {
    if (place_.rank != 0) return join();
    Attempt attempt = endpoint_->host();
    return attempt.store ? attempt : join_other_host(attempt.failure);
  } catch (const UnknownHost& error) {
    return {.failure = error.what(), .longest = kLongestLookUp};
  } catch (CommError& error) {
    error.add_context(where_);
    throw;
  }
}

// Called if rank 0's address is taken, either for good or by a run that is ending. If another process has entered
// there as rank 0, entering its registration throws an error that names the process.
Attempt EndpointRendezvous::join_other_host(const std::string& taken) {
  Attempt other = join();
  if (!other.store) return {.failure = taken.empty() ? other.failure : taken, .is_foreign = true};
  try {
    other.store->get(kCallPrefix + Registration::key_of(0), std::min<milliseconds>(time_left(end_), kStaleRun));
    return other;
  } catch (const CommError&) {  // the other rank 0 did not enter, or has ended
    return {.failure = taken.empty() ? "another rank 0 has the address" : taken};
  }
}

// Returns whether this rank has entered; if not, `attempt` has the reason.
bool EndpointRendezvous::enter(Attempt& attempt) {
  store_ = attempt.store;
  store_->set_timeout(time_left(end_));
  calls_ = std::make_shared<PrefixStore>(kCallPrefix, store_);
  watch_ = std::make_shared<FormationWatch>(calls_, where_, place_.rank, place_.size, attempt.is_host);
  registration_.emplace(*calls_, *watch_, place_.rank, place_.size, backend_, where_);
  bool is_over = true;
  try {
    is_over = registration_->is_over();
  } catch (const CommError&) {  // the server of an earlier group ended meanwhile
    return false;
  }
  if (!is_over) {
    registration_->enter();
    return true;
  }
  if (attempt.is_host) {  // another rank died before rank 0 entered: the others receive the reason
    watch_->confirm_failure(watch_->all_ranks());
    throw CommError(registration_->error());
  }
  check_earlier(attempt);
  return false;
}

// Called if the registration had ended before this rank connected. If this rank or its predecessor had entered, rank 0
// will start another one. If the ranks had another world size or backend, the registration may be of another run that
// is ending. If it failed without this rank, this rank throws the same error.
void EndpointRendezvous::check_earlier(Attempt& attempt) const {
  const bool is_ours = registration_->is_by_this_process();
  LOCKSTEP_CHECK(place_.rank != 0 || !is_ours,
                 "init_process_group: this process has a group at {} already\n"
                 "Destroy it first, cut it with split, or give another .group_name",
                 place_.address);
  attempt.is_foreign = !is_ours && registration_->is_of_others();
  if (!is_ours && !attempt.is_foreign && !registration_->has_failed()) throw CommError(registration_->error());
  if (!attempt.is_foreign && !registration_->has_entered()) {
    watch_->confirm_failure({});  // rank 0 waits for it
    throw CommError(registration_->error());
  }
  attempt.failure = is_ours ? "rank 0 still has the group before this one"
                            : registration_->error().substr(where_.size() + 2);  // all messages begin with where_
}

// Pauses before the next attempt, or throws if the budget is spent. An endpoint of another run may be about to end:
// kStaleRun is granted to that run.
void EndpointRendezvous::pause(const Attempt& attempt) {
  if (!attempt.failure.empty()) failure_ = attempt.failure;
  if (!attempt.is_foreign) foreign_since_.reset();
  if (attempt.is_foreign && !foreign_since_) foreign_since_ = Clock::now();
  deadline_.waited(attempt.longest);
  const bool is_late = deadline_.passed();
  if (attempt.is_foreign && (is_late || Clock::now() - *foreign_since_ > kStaleRun))
    throw CommError(where_ + ": " + failure_);
  if (is_late) throw CommTimeout(fmt::format("{}: {} (after {} ms)", where_, failure_, timeout_.count()));
  std::this_thread::sleep_for(pause_);  // there is no notification when a process begins to listen
  pause_ = std::min<milliseconds>(2 * pause_, place_.is_one_host ? kConnectPoll : kLongestConnectPoll);
}

// Rank 0 may destroy its group and the store after this call, so rank 0 waits until all ranks have the outcome.
void EndpointRendezvous::confirm_outcome() {
  calls_->set_timeout(timeout_);
  if (place_.rank != 0) return calls_->set(confirmed_key(place_.rank), "");
  const std::shared_ptr<Store> store = FormationWatch::watched(watch_, calls_);
  for (int rank = 1; rank < place_.size; ++rank) {
    try {
      store->get(confirmed_key(rank), time_left(end_));
    } catch (const CommTimeout&) {
      watch_->check();
      throw CommTimeout(fmt::format("{}: rank {} arrived, but did not confirm the outcome", where_, rank));
    }
  }
}

}  // namespace

Rendezvous meet_at_endpoint(const RendezvousOptions& options, const Place& place) {
  return EndpointRendezvous(options, place).run();
}

}  // namespace lockstep::parallel
