// Meeting over an abstract Unix socket: nothing is left behind, and the kernel says who is at the other end.
#include "lockstep/parallel/limits_internal.h"
#include "lockstep/parallel/meeting_place_internal.h"
#include "lockstep/parallel/unix_store.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

namespace {

std::string describe(const Greeting& greeting, int size) {
  const pid_t pid = greeting.server.pid;
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
    case Welcome::kOtherSize:
      return fmt::format("rank 0 (process {}) counts {} ranks, this process {}\nWORLD_SIZE must be the same on all",
                         pid, greeting.detail, size);
    case Welcome::kSilent:
      return fmt::format("rank 0 (process {}) does not answer: is it stopped?", pid);
    default:
      return "rank 0 did not arrive";
  }
}

class UnixPlace final : public MeetingPlace {
 public:
  explicit UnixPlace(const Place& place)
      : options_{.socket = place.socket,
                 .address = place.address,
                 .job = place.job,
                 .rank = place.rank,
                 .size = place.size} {}

  std::shared_ptr<Store> host() override {
    Descriptor listener = listen_abstract(options_.socket);
    if (!listener) {
      if (errno != EADDRINUSE) throw CommError(reason(errno));
      return nullptr;
    }
    auto server = std::make_unique<UnixStoreServer>(std::move(listener), options_.job, options_.size);
    Greeting greeting = greet(options_, Deadline(kHandshakeDeadline));
    if (greeting.welcome != Welcome::kYes) throw CommError(describe(greeting, options_.size));
    return std::make_shared<UnixStore>(options_, std::move(greeting), std::move(server));
  }

  Joined join(Deadline deadline) override {
    Greeting greeting = greet(options_, deadline);
    if (greeting.welcome == Welcome::kYes) return {.store = std::make_shared<UnixStore>(options_, std::move(greeting))};
    return {.is_foreign = greeting.welcome >= Welcome::kOtherUser, .failure = describe(greeting, options_.size)};
  }

  Descriptor leave_will(Store& store, const std::vector<std::string>& keys, const std::string& value) override {
    return static_cast<UnixStore&>(store).leave_will(keys, value);
  }

  std::string own_address() override { return "127.0.0.1"; }

 private:
  UnixStoreOptions options_;
};

}  // namespace

std::unique_ptr<MeetingPlace> make_unix_place(const Place& place) { return std::make_unique<UnixPlace>(place); }

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
