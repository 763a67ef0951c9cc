// Ranks that watch each other through the store: silent ranks, ended processes, reported failures, and orderly exits.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "lockstep/base/process_internal.h"
#include "lockstep/parallel/comm/peer_watch_internal.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "tests/support/testing.h"

namespace {

namespace par = ls::parallel;
using std::chrono::milliseconds;

// A watch whose failure a test can wait for. A rank counts as silent after an hour unless a test sets less.
class Watched {
 public:
  Watched(int rank, int size, std::shared_ptr<par::Store> store, milliseconds silence = std::chrono::hours(1),
          milliseconds beat = milliseconds(5))
      : watch_({.rank = rank, .size = size, .store = std::move(store), .beat = beat, .silence = silence}, [this] {
          const std::lock_guard lock(mutex_);
          ++calls_;
          changed_.notify_all();
        }) {}
  par::PeerWatch& watch() { return watch_; }
  std::string failure() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [this] { return calls_ > 0; }));
    CHECK(calls_ == 1);
    return watch_.failure();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int calls_ = 0;
  par::PeerWatch watch_;
};

}  // namespace

TEST_CASE("a failure that one rank reports is the failure of all ranks, and the first one counts") {
  const auto store = std::make_shared<par::InProcessStore>();
  Watched a(0, 3, store), b(1, 3, store), c(2, 3, store);
  CHECK(!b.watch().has_failed());
  CHECK(b.watch().failure().empty());
  a.watch().fail("rank 0: broken");
  b.watch().fail("rank 1: broken, too");
  for (Watched* each : {&a, &b, &c}) CHECK(each->failure() == "rank 0: broken");
}

TEST_CASE("an error of the transport is the failure only if the watch finds no rank that has gone") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) pause();
  const std::string ended = ls::process_identity(child);
  REQUIRE(kill(child, SIGKILL) == 0);
  waitpid(child, nullptr, 0);

  const auto store = std::make_shared<par::InProcessStore>();
  Watched a(0, 2, store), b(1, 2, store);
  CHECK(a.watch().fail_of_transport("rank 0: connection closed") == "rank 0: connection closed");
  CHECK(b.failure() == "rank 0: connection closed");

  const auto other = std::make_shared<par::InProcessStore>();
  other->set("watch/process/1", ended);
  Watched alone(0, 2, other, std::chrono::hours(1), std::chrono::seconds(20));  // time for the watch's first look
  CHECK(alone.watch().fail_of_transport("rank 0: connection closed") == "rank 1 is gone: its process has ended");
}

TEST_CASE("a rank that sends no heartbeat is lost, for all others") {
  const auto store = std::make_shared<par::InProcessStore>();
  store->set("watch/sign/1", "3 8");  // its last heartbeat
  Watched a(0, 3, store, milliseconds(50)), c(2, 3, store, std::chrono::hours(1));
  for (Watched* each : {&a, &c}) CHECK(contains(each->failure(), "rank 1 is gone: it sent no heartbeat for 50 ms"));
}

TEST_CASE("a rank that leaves in order is not lost, and the rank that it watched is watched by another") {
  const auto store = std::make_shared<par::InProcessStore>();
  Watched a(0, 3, store, std::chrono::seconds(2));
  {
    Watched b(1, 3, store);
    b.watch().set_collectives(4);
  }
  CHECK(contains(a.watch().progress(), "rank 1 has started 4 and left"));
  store->set("watch/sign/2", "1 0");
  CHECK(contains(a.failure(), "rank 2 is gone"));
}

TEST_CASE("rank 0 stays until the others have received a failure, but does not wait for ranks that left or died") {
  const auto store = std::make_shared<par::InProcessStore>();
  Watched b(1, 3, store);
  std::string heard;
  {
    Watched a(0, 3, store);  // rank 2 never starts
    a.watch().fail("rank 0: broken");
    heard = b.failure();
  }
  CHECK(heard == "rank 0: broken");
  CHECK(store->get("watch/heard/0", milliseconds(1)) == "1");
  CHECK(store->get("watch/heard/1") == "1");
}

// A store whose holder has died.
class EndedStore final : public par::Store {
 public:
  std::string request(const par::StoreRequest& request, milliseconds timeout) override {
    return store().request(request, timeout);
  }
  std::atomic<bool> is_gone{false};
  std::atomic<int> calls{0};

 private:
  par::Store& store() {
    ++calls;
    if (is_gone) throw ls::CommError("rank 0, which holds it, has left or died");
    return store_;
  }
  par::InProcessStore store_;
};

TEST_CASE("a rank whose store's holder has ended knows that no further message can arrive") {
  const auto store = std::make_shared<EndedStore>();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) pause();
  store->set("watch/process/0", ls::process_identity(child));
  Watched b(1, 2, store);
  b.watch().remember_holder();
  const auto pass_beats = [&](int count) {  // each heartbeat asks the store
    for (const int before = store->calls; store->calls < before + count;) std::this_thread::yield();
  };
  pass_beats(10);
  store->is_gone = true;
  pass_beats(10);
  CHECK(!b.watch().is_orphaned());  // the holder still runs
  REQUIRE(kill(child, SIGKILL) == 0);
  waitpid(child, nullptr, 0);
  pass_beats(10);
  CHECK(b.watch().is_orphaned());
  CHECK(!b.watch().has_failed());
}

TEST_CASE("a process that ends is reported at once") {
  const std::string path = "peer_watch.store";
  std::filesystem::remove(path);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto store = std::make_shared<par::FileStore>(path, par::FileStoreOptions{.world_size = 2});
    const par::PeerWatch watch({.rank = 1, .size = 2, .store = store}, [] {});
    store->get("go");
    _exit(0);  // without leaving in order
  }
  const auto store = std::make_shared<par::FileStore>(path, par::FileStoreOptions{.world_size = 2});
  store->get("watch/process/1");
  Watched a(0, 2, store);
  CHECK(!a.watch().has_failed());
  store->set("go", "1");
  CHECK(a.failure() == "rank 1 is gone: its process has ended");
  waitpid(child, nullptr, 0);
}
