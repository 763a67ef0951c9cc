// Ranks of several hosts meet at one port of rank 0's host, over TCP.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/meeting_place_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/warning.h"

namespace lockstep::parallel {

namespace {

// The time of an attempt at each address; then twice as long, up to a limit: an answer over a slow network takes time.
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
  std::vector<TcpAddress> addresses_;  // of the host, as it was looked up last
  std::string taken_;
  std::chrono::milliseconds attempt_ = kFirstAttempt;
  // The result of all attempts that says most: in the last one rank 0 may have given up already.
  ConnectOutcome worst_ = ConnectOutcome::kNobody;
  std::string told_;
};

std::shared_ptr<Store> TcpPlace::host() {
  look_up();
  std::string error;
  Descriptor listener = listen_tcp(addresses_, error);
  if (listener) {
    const std::string own = address_of(listener).to_string();
    return std::make_shared<StoreClient>(own, serve_tcp(std::move(listener), credentials_));
  }
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
