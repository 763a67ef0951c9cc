// Meeting over an abstract Unix socket: nothing is left behind, and the kernel says who is at the other end.
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/meeting_place_internal.h"
#include "lockstep/parallel/rendezvous/unix_store_internal.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{250};  // at the list of all sockets

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
    auto server = std::make_unique<UnixStoreServer>(std::move(listener), options_.job);
    Greeting greeting = greet(options_, Deadline(kHandshakeDeadline));
    if (greeting.welcome != Welcome::kYes) throw CommError(describe(greeting));
    return std::make_shared<UnixStore>(options_, std::move(greeting), std::move(server));
  }

  Joined join(Deadline deadline) override {
    Greeting greeting = greet(options_, deadline);
    if (greeting.welcome == Welcome::kYes) return {.store = std::make_shared<UnixStore>(options_, std::move(greeting))};
    look_at(greeting.welcome);
    return {.is_foreign = is_foreign(greeting.welcome), .failure = describe(greeting)};
  }

  std::string own_address() override { return "127.0.0.1"; }

 private:
  using Clock = Deadline::Clock;
  void look_at(Welcome welcome);
  bool is_foreign(Welcome welcome) const;
  std::string describe(const Greeting& greeting) const;

  UnixStoreOptions options_;
  Welcome last_ = Welcome::kYes;  // what the last tries have met ...
  Clock::time_point since_, next_look_;
  bool is_squatted_ = false;  // ... and whether another program keeps the address from rank 0
};

// A store that begins has the address for a moment before it listens, and one that many ranks connect to at
// once has a full queue for a moment. What goes on longer is no store.
void UnixPlace::look_at(Welcome welcome) {
  const Clock::time_point now = Clock::now();
  if (welcome != last_) {
    last_ = welcome;
    since_ = now;
    next_look_ = now + kBetweenLooks;
    is_squatted_ = false;
  }
  if (welcome == Welcome::kBusy) is_squatted_ = now - since_ > kHandshakeDeadline;
  if (welcome != Welcome::kNobody || now < next_look_) return;
  next_look_ = now + kBetweenLooks;
  is_squatted_ = is_abstract_name_taken(options_.socket);
}

bool UnixPlace::is_foreign(Welcome welcome) const {
  return is_squatted_ || welcome == Welcome::kExhausted || welcome >= Welcome::kOtherUser;
}

std::string UnixPlace::describe(const Greeting& greeting) const {
  const pid_t pid = greeting.server.pid;
  const bool is_busy = greeting.welcome == Welcome::kBusy;
  if (is_busy || is_squatted_)
    return fmt::format(
        "a process has the address and {}: another program, or a rank 0 that was stopped as it began: socket @{}\n"
        "End it (ss -xap names it), or choose another MASTER_PORT",
        is_busy ? "accepts nobody" : "does not listen", options_.socket);
  switch (greeting.welcome) {
    case Welcome::kOtherUser:
      return fmt::format("the address belongs to process {} of user {}\nChoose another MASTER_PORT", pid,
                         greeting.server.uid);
    case Welcome::kOtherVersion:
      return fmt::format("process {} there runs another version of Lockstep (store protocol {}, here {})", pid,
                         greeting.detail, StoreHello::kVersion);
    case Welcome::kOtherJob:
      return fmt::format(
          "another job uses this address: process {}\nWait for its end, end it if it is a stale run, "
          "or choose another MASTER_PORT",
          pid);
    case Welcome::kExhausted:
      return fmt::format("rank 0 (process {}) cannot accept this rank's connection: {}", pid, greeting.detail);
    case Welcome::kSilent:
      return fmt::format("rank 0 (process {}) does not answer: is it stopped?", pid);
    default:
      return "rank 0 did not arrive";
  }
}

}  // namespace

std::unique_ptr<MeetingPlace> make_unix_place(const Place& place) { return std::make_unique<UnixPlace>(place); }

}  // namespace lockstep::parallel
