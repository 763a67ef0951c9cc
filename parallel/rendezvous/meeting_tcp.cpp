// Meeting over TCP. Rank 0 takes the first port that is free, the others look through the same ports: the one that was
// asked for may be an agent's (torchrun's), an earlier group's of the same processes, or somebody else's. Who is who is
// settled by the job's token, so what else listens there does no harm.
#include <algorithm>
#include <utility>

#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/meeting_place_internal.h"
#include "lockstep/parallel/rendezvous/tcp_store_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/warning.h"

namespace lockstep::parallel {

namespace {

constexpr int kPortsAbove = 64;
// At a port that somebody else may have; then twice as long, up to a limit: answers come from afar as well.
constexpr std::chrono::milliseconds kFirstLook{250}, kLongestLook{4000};
constexpr int kUnanswered = 2;  // ports in one round: behind a firewall no others answer either

class TcpPlace final : public MeetingPlace {
 public:
  explicit TcpPlace(const Place& place)
      : place_(place),
        identity_(identity_of({.token = place.token, .authenticate = place.authenticate, .job = place.job_text})),
        first_port_(place.port + (place.is_port_taken ? 1 : 0)), last_port_(std::min(place.port + kPortsAbove, 65535)),
        next_port_(first_port_) {}

  std::shared_ptr<Store> host() override;
  Joined join(Deadline deadline) override;
  std::string own_address() override;

 private:
  std::vector<TcpAddress> at_port(int port) const;
  void look_up() { addresses_ = resolve(place_.host, first_port_); }

  Place place_;
  TcpIdentity identity_;
  int first_port_, last_port_;
  std::vector<TcpAddress> addresses_;  // of the host, as it was looked up last
  std::chrono::milliseconds look_ = kFirstLook;
  int next_port_;  // after one that was joined: its roll call may have been an earlier group's
  // The most telling answer of all tries: in the last one rank 0 may have given up already.
  Welcome worst_ = Welcome::kNobody;
  std::string told_;
};

std::vector<TcpAddress> TcpPlace::at_port(int port) const {
  std::vector<TcpAddress> addresses = addresses_;
  for (TcpAddress& address : addresses) address = address.with_port(port);
  return addresses;
}

std::shared_ptr<Store> TcpPlace::host() {
  look_up();
  std::string error;
  for (int port = first_port_; port <= last_port_; ++port) {
    error.clear();
    Descriptor listener = listen_tcp(at_port(port), error);
    if (!listener) continue;
    const TcpAddress own = address_of(listener);
    std::unique_ptr<StoreServer> server = serve_tcp(std::move(listener), identity_);
    Greeting greeting = greet_tcp(own, identity_, Deadline(kHandshakeDeadline));
    if (greeting.welcome != Welcome::kYes) throw CommError(describe_tcp(greeting, own.to_string(), identity_));
    return TcpMeeting::make(own, identity_, std::move(greeting), std::move(server));
  }
  throw CommError(
      fmt::format("rank 0 cannot listen at {}, ports {} to {}: {}\nMASTER_ADDR has to be an address of its host",
                  place_.host, first_port_, last_port_, error));
}

MeetingPlace::Joined TcpPlace::join(Deadline deadline) {
  look_up();
  Joined out;
  const std::chrono::milliseconds each = std::exchange(look_, std::min(2 * look_, kLongestLook));
  int unanswered = 0;
  for (int port = std::exchange(next_port_, first_port_);
       port <= last_port_ && unanswered < kUnanswered && !deadline.passed(); ++port) {
    TcpAddress reached;
    const auto began = Deadline::Clock::now();
    Greeting greeting = greet_any(at_port(port), identity_, std::min(each, deadline.left()), reached);
    deadline.waited(each * static_cast<int>(addresses_.size()));
    if (greeting.welcome == Welcome::kNobody && Deadline::Clock::now() - began >= each) ++unanswered;
    if (greeting.welcome == Welcome::kYes) {
      out.store = TcpMeeting::make(reached, identity_, std::move(greeting));
      next_port_ = port + 1;
      return out;
    }
    if (!told_.empty() && (greeting.welcome < worst_ || (port > first_port_ && greeting.welcome == worst_))) continue;
    worst_ = greeting.welcome;
    const std::string where =
        worst_ == Welcome::kNobody ? fmt::format("{}:{}", place_.host, port) : reached.to_string();
    told_ = ": " + describe_tcp(greeting, where, identity_);
  }
  out.failure = fmt::format("no rank 0 of this job at ports {} to {}{}", first_port_, last_port_, told_);
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
