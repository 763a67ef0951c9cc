// A thread that writes heartbeats to the store and checks those of another rank, for backends whose library does not
// detect dead ranks (NCCL). Not installed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct PeerWatchOptions {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store = nullptr;
  std::vector<int> members = {};                                 // see Rendezvous; for error messages
  std::chrono::milliseconds beat = std::chrono::seconds(1);      // from one heartbeat to the next
  std::chrono::milliseconds silence = std::chrono::seconds(15);  // without a heartbeat, until a rank counts as lost
};

class PeerWatch {
 public:
  // `on_failure` is called once, by the watch's thread or by the caller of fail(), when the group has failed.
  PeerWatch(PeerWatchOptions options, Callback<void()> on_failure);
  // Records in the store that this rank leaves. After a failure rank 0, which often serves the store, waits up to two
  // beats until all other ranks have read the failure.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Reason of the group's failure, the same text on all ranks; empty if it has not failed.
  std::string failure() const;
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  // Called once rank 0 has started: from then on the end of rank 0 is detected even if the store ends with it.
  void remember_holder();
  // True if the store has not answered for two beats and rank 0, which served it, has ended. This is not a failure if
  // rank 0 left in order, but incomplete operations will not complete any more.
  bool is_orphaned() const { return orphaned_.load(std::memory_order_acquire); }
  // Makes `why` the failure of all ranks unless the group has failed before.
  void fail(const std::string& why);
  // The same for an error of the transport, which is often only the consequence of a rank that has gone: first waits up
  // to three beats for the watch to find that rank. Returns the failure.
  std::string fail_of_transport(const std::string& why);
  // Sets this rank's number of started collectives, which the other ranks report in timeouts.
  void set_collectives(std::uint64_t count) { collectives_.store(count, std::memory_order_relaxed); }
  // Describes all ranks as the store knows them: "rank 1 has started 4 collectives, rank 2 7 and left".
  std::string progress();

 private:
  struct Heartbeat;
  void run();
  void beat();
  void look_at_next();
  void miss_store(const std::string& why);
  void wait_for_hearers();
  void take(const std::string& why);
  std::string value_of(const std::string& key);
  Heartbeat heartbeat_of(int rank);

  PeerWatchOptions options_;
  Callback<void()> on_failure_;
  std::atomic<std::uint64_t> collectives_{0};
  std::uint64_t beats_ = 0;
  int beats_missed_ = 0;  // consecutive beats in which the store did not answer
  int next_;              // the rank that this one checks: the next that has not left
  std::string heard_;     // last heartbeat of `next_`, and when it was read
  std::chrono::steady_clock::time_point heard_at_;

  mutable std::mutex mutex_;         // guards stopping_, failure_ and holder_
  std::condition_variable changed_;  // stopping_ or failure_ has
  bool stopping_ = false;
  std::string failure_;
  std::string holder_;  // identifies the process of rank 0
  std::atomic<bool> failed_{false}, orphaned_{false};
  std::thread thread_;  // the last member, because it uses all others
};

}  // namespace lockstep::parallel
