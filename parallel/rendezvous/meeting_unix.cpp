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
    return std::make_shared<StoreClient>(options_.address, serve_unix(std::move(listener), options_.job));
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
  ConnectOutcome last_ = ConnectOutcome::kConnected;  // what the last tries have met ...
  Clock::time_point since_, next_look_;
  bool is_squatted_ = false;  // ... and whether another program keeps the address from rank 0
};

// A store that begins has the address for a moment before it listens, and one that many ranks connect to at
// once has a full queue for a moment. What goes on longer is no store.
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
        "a process has the address and {}: another program, or a rank 0 that was stopped as it began: socket @{}\n"
        "End it (ss -xap names it), or choose another MASTER_PORT",
        is_busy ? "accepts nobody" : "does not listen", options_.socket);
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
      return fmt::format("rank 0 (process {}) does not answer: is it stopped?", pid);
    default:
      return "rank 0 did not arrive";
  }
}

}  // namespace

std::unique_ptr<MeetingPlace> make_unix_place(const Place& place) { return std::make_unique<UnixPlace>(place); }

}  // namespace lockstep::parallel
