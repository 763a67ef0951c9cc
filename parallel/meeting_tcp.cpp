// Meeting over TCP. Rank 0 takes the first port that is free, the others look through the same ports: the one that was
// asked for may be an agent's (torchrun's), an earlier group's of the same processes, or somebody else's. Who is who is
// settled by the job's token, so what else listens there does no harm.
#include <algorithm>
#include <utility>

#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/meeting_place_internal.h"
#include "lockstep/parallel/tcp_store_internal.h"
#include "lockstep/tensor/byte_reader.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/warning.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

constexpr int kPortsAbove = 64;
// At a port that somebody else may have; then twice as long, up to a limit: answers come from afar as well.
constexpr std::chrono::milliseconds kFirstLook{250}, kLongestLook{4000};
constexpr int kUnanswered = 2;  // ports in one round: behind a firewall no others answer either
constexpr const char* kSizeKey = "world size";

class TcpPlace final : public MeetingPlace {
 public:
  explicit TcpPlace(const Place& place)
      : place_(place),
        identity_(identity_of({.token = place.token, .authenticate = place.authenticate, .job = place.job_text})),
        first_port_(place.port + (place.is_port_taken ? 1 : 0)), last_port_(std::min(place.port + kPortsAbove, 65535)),
        next_port_(first_port_) {}

  std::shared_ptr<Store> host() override;
  Joined join(Deadline deadline) override;
  Descriptor leave_will(Store& store, const std::vector<std::string>& keys, const std::string& value) override {
    return TcpMeeting::leave_will(static_cast<TcpStore&>(store), keys, value);
  }
  std::string own_address() override;

 private:
  std::vector<TcpAddress> at_port(std::vector<TcpAddress> addresses, int port) const;
  bool is_of_this_size(Store& store, std::chrono::milliseconds timeout) const;

  Place place_;
  TcpIdentity identity_;
  int first_port_, last_port_;
  std::chrono::milliseconds look_ = kFirstLook;
  int next_port_;  // after one that was joined: its roll call may have been an earlier group's
  // The most telling answer of all tries: in the last one rank 0 may have given up already.
  Welcome worst_ = Welcome::kNobody;
  std::string told_;
};

std::vector<TcpAddress> TcpPlace::at_port(std::vector<TcpAddress> addresses, int port) const {
  for (TcpAddress& address : addresses) address = address.with_port(port);
  return addresses;
}

std::shared_ptr<Store> TcpPlace::host() {
  const std::vector<TcpAddress> addresses = resolve(place_.host, first_port_);
  std::string error;
  for (int port = first_port_; port <= last_port_; ++port) {
    error.clear();
    Descriptor listener = listen_tcp(at_port(addresses, port), error);
    if (!listener) continue;
    const TcpAddress own = address_of(listener);
    std::unique_ptr<StoreServer> server = serve_tcp(std::move(listener), identity_);
    Greeting greeting = greet_tcp(own, identity_, Deadline(kHandshakeDeadline));
    if (greeting.welcome != Welcome::kYes) throw CommError(describe_tcp(greeting, own.to_string(), identity_));
    std::shared_ptr<TcpStore> store = TcpMeeting::make(own, identity_, std::move(greeting), std::move(server));
    store->set(kSizeKey, std::to_string(place_.size));
    return store;
  }
  throw CommError(
      fmt::format("rank 0 cannot listen at {}, ports {} to {}: {}\nMASTER_ADDR has to be an address of its host",
                  place_.host, first_port_, last_port_, error));
}

MeetingPlace::Joined TcpPlace::join(Deadline deadline) {
  const std::vector<TcpAddress> addresses = resolve(place_.host, first_port_);
  Joined out;
  const std::chrono::milliseconds each = std::exchange(look_, std::min(2 * look_, kLongestLook));
  int unanswered = 0;
  for (int port = std::exchange(next_port_, first_port_);
       port <= last_port_ && unanswered < kUnanswered && !deadline.passed(); ++port) {
    TcpAddress reached;
    const auto began = Deadline::Clock::now();
    Greeting greeting = greet_any(at_port(addresses, port), identity_, std::min(each, deadline.left()), reached);
    deadline.waited(each * static_cast<int>(addresses.size()));
    if (greeting.welcome == Welcome::kNobody && Deadline::Clock::now() - began >= each) ++unanswered;
    if (greeting.welcome == Welcome::kYes) {
      auto store = TcpMeeting::make(reached, identity_, std::move(greeting));
      if (!is_of_this_size(*store, std::max(deadline.left(), kAttempt))) continue;
      out.store = std::move(store);
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

// The size is no part of the proof, so that a wrong one can be told. False: the store ended meanwhile, with an earlier group.
bool TcpPlace::is_of_this_size(Store& store, std::chrono::milliseconds timeout) const {
  std::string size;
  try {
    size = store.get(kSizeKey, timeout);
  } catch (const CommError&) {
    return false;
  }
  if (size != std::to_string(place_.size))
    throw CommError(
        fmt::format("rank 0 counts {} ranks, this process {}\nWORLD_SIZE must be the same on all", size, place_.size));
  return true;
}

std::string TcpPlace::own_address() {
  const std::string own = address_towards(resolve(place_.host, first_port_));
  if (is_loopback(own))
    warn("rendezvous: loopback",
         fmt::format("rendezvous at {}: this host reaches it at {}, which other hosts cannot reach\n"
                     "MASTER_ADDR should be rank 0's address on the network",
                     place_.address, own));
  return own;
}

}  // namespace

std::unique_ptr<MeetingPlace> make_tcp_place(const Place& place) { return std::make_unique<TcpPlace>(place); }

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
