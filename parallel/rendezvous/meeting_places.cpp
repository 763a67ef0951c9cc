// The endpoints of a rendezvous: an abstract Unix socket on one host, a TCP port of rank 0 between hosts.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/parallel/rendezvous/store_client_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/warning.h"

namespace lockstep::parallel {

// --- one host -------------------------------------------------------------------------------------------------------

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{250};  // pause between two scans of the list of all sockets

class UnixPlace final : public MeetingPlace {
 public:
  explicit UnixPlace(const Place& place)
      : options_{.socket = place.socket, .address = place.address, .job = place.job} {}

  std::shared_ptr<Store> host() override {
    Descriptor listener = listen_abstract(options_.socket);
    if (!listener) {
      if (errno != EADDRINUSE) throw CommError(fmt::format("rank 0 cannot listen: {}", reason(errno)));
      return nullptr;
    }
    return std::make_shared<StoreServer>(std::move(listener),
                                         StoreServerOptions{.job = options_.job, .is_one_host = true});
  }

  Joined join(Deadline deadline) override {
    ConnectResult result = connect_unix(options_, deadline);
    if (result.outcome == ConnectOutcome::kConnected) return {.store = make_unix_store(options_, std::move(result))};
    look_at(result.outcome);
    return {.is_foreign = is_foreign(result.outcome), .failure = describe(result)};
  }

  std::string own_address() override { return "127.0.0.1"; }

 private:
  using Clock = Deadline::Clock;
  void look_at(ConnectOutcome outcome);
  bool is_foreign(ConnectOutcome outcome) const;
  std::string describe(const ConnectResult& result) const;

  UnixStoreOptions options_;
  ConnectOutcome last_ = ConnectOutcome::kConnected;  // outcome of the last attempts
  Clock::time_point since_, next_look_;
  bool is_squatted_ = false;  // whether another program holds the address
};

// A store that starts holds the address briefly before it listens, and its queue is briefly full when many ranks
// connect at once. If either state lasts, the holder of the address is not a store.
void UnixPlace::look_at(ConnectOutcome outcome) {
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

bool UnixPlace::is_foreign(ConnectOutcome outcome) const {
  return is_squatted_ || outcome == ConnectOutcome::kExhausted || outcome >= ConnectOutcome::kOtherUser;
}

std::string UnixPlace::describe(const ConnectResult& result) const {
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

}  // namespace

std::unique_ptr<MeetingPlace> make_unix_place(const Place& place) { return std::make_unique<UnixPlace>(place); }

// --- several hosts --------------------------------------------------------------------------------------------------

namespace {

// The time for each address in an attempt. It doubles up to a limit, as replies over a slow network take longer.
constexpr std::chrono::milliseconds kFirstAttempt{250}, kLongestAttempt{4000};

class TcpPlace final : public MeetingPlace {
 public:
  explicit TcpPlace(const Place& place)
      : place_(place),
        credentials_(make_credentials(
            {.token = place.token, .authenticate = place.authenticate, .job = place.job_text, .name = place.store_name},
            place.port)) {}

  std::shared_ptr<Store> host() override;
  std::string taken() const override { return taken_; }
  Joined join(Deadline deadline) override;
  std::string own_address() override;

 private:
  void look_up() { addresses_ = resolve(place_.host, place_.port); }

  Place place_;
  TcpCredentials credentials_;
  std::vector<TcpAddress> addresses_;  // of the host, from the last look-up
  std::string taken_;
  std::chrono::milliseconds attempt_ = kFirstAttempt;
  // The most specific result of all attempts: rank 0 may have given up before the last one.
  ConnectOutcome worst_ = ConnectOutcome::kNobody;
  std::string told_;
};

std::shared_ptr<Store> TcpPlace::host() {
  look_up();
  std::string error;
  Descriptor listener = listen_tcp(addresses_, error);
  if (listener)
    return std::make_shared<StoreServer>(std::move(listener),
                                         StoreServerOptions{.job = credentials_.id, .tls = credentials_.tls});
  const bool is_in_use = errno == EADDRINUSE;
  const Listener owner = is_in_use ? find_listener(place_.port) : Listener();
  LOCKSTEP_CHECK(owner.pid != ::getpid(),
                 "init_process_group: this process has a group at {} already\n"
                 "Destroy it first, cut it with split, or give the other group another port",
                 place_.address);
  taken_ = fmt::format("rank 0 cannot listen at {}: {}", place_.port_name, error);
  if (owner.pid > 0) taken_ += fmt::format("; process {} ({}) listens there", owner.pid, owner.program);
  if (!is_in_use) throw CommError(taken_ + "\nMASTER_ADDR has to be an address of its host");
  taken_ += "\nEnd the process that has the port, or choose another port";
  return nullptr;
}

MeetingPlace::Joined TcpPlace::join(Deadline deadline) {
  look_up();
  Joined out;
  TcpAddress reached;
  const std::chrono::milliseconds each =
      std::min(std::exchange(attempt_, std::min(2 * attempt_, kLongestAttempt)), deadline.left());
  ConnectResult result = connect_any(addresses_, credentials_, each, reached);
  if (result.outcome == ConnectOutcome::kConnected) {
    out.store = make_tcp_store(reached, credentials_, std::move(result));
    return out;
  }
  if (told_.empty() || result.outcome >= worst_) {
    worst_ = result.outcome;
    const bool is_nobody = worst_ == ConnectOutcome::kNobody;
    told_ = describe_tcp(result, is_nobody ? place_.address : reached.to_string(), credentials_);
  }
  out.failure = fmt::format("no rank 0 of this job at {}: {}", place_.port_name, told_);
  return out;
}

std::string TcpPlace::own_address() {
  const std::string own = address_towards(addresses_);
  if (is_loopback(own))
    warn("rendezvous: loopback",
         fmt::format("rendezvous at {}: this host reaches it at {}, which other hosts cannot reach\n"
                     "MASTER_ADDR should be rank 0's address on the network",
                     place_.address, own));
  return own;
}

}  // namespace

std::unique_ptr<MeetingPlace> make_tcp_place(const Place& place) { return std::make_unique<TcpPlace>(place); }

}  // namespace lockstep::parallel
