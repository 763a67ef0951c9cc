// A thread that tells the other ranks by the store that this one lives, and notices that one of them does not. For backends
// whose library cannot tell (NCCL). Not installed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/tensor/callback.h"

namespace lockstep::parallel {

struct PeerWatchOptions {
  int rank = 0;
  int size = 1;
  std::shared_ptr<Store> store = nullptr;
  std::chrono::milliseconds beat = std::chrono::seconds(1);      // from one sign of life to the next
  std::chrono::milliseconds silence = std::chrono::seconds(15);  // after which a rank counts as lost
};

class PeerWatch {
 public:
  // `on_failure` is called once, by the thread or by who calls fail(), when the group has failed.
  PeerWatch(PeerWatchOptions options, Callback<void()> on_failure);
  // Says that this rank leaves. After a failure rank 0, which often holds the store, stays for two beats at most until all
  // others have heard of it.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Why the group has failed, the same text on all ranks; empty while it has not.
  std::string failure() const;
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  // Once rank 0 is there: from then on its end is noticed also where the store ends with it.
  void remember_holder();
  // Whether the store has not answered for two beats, and rank 0, who held it, has ended. That is no failure where it left in
  // order; what is not complete by then will not be.
  bool is_orphaned() const { return orphaned_.load(std::memory_order_acquire); }
  // Makes `why` the failure of all ranks, unless they have one.
  void fail(const std::string& why);
  // How far this rank is; the others show it when they have waited too long.
  void set_collectives(std::uint64_t count) { collectives_.store(count, std::memory_order_relaxed); }
  // "rank 1 has started 4 collectives, rank 2 7 and left"; as far as the store says.
  std::string progress();

 private:
  struct Sign;
  void run();
  void give_sign();
  void look_at_next();
  void miss_store(const std::string& why);
  void wait_for_hearers();
  void take(const std::string& why);
  std::string value_of(const std::string& key);
  Sign sign_of(int rank);

  PeerWatchOptions options_;
  Callback<void()> on_failure_;
  std::atomic<std::uint64_t> collectives_{0};
  std::uint64_t beats_ = 0;
  int beats_missed_ = 0;  // in which the store did not answer, one after another
  int next_;              // the rank that this one looks after: the next that has not left
  std::string heard_;     // its last sign ...
  std::chrono::steady_clock::time_point heard_at_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable stop_;
  bool stopping_ = false;
  std::string failure_;
  std::string holder_;  // the mark of rank 0's process
  std::atomic<bool> failed_{false}, orphaned_{false};
  std::thread thread_;  // last: it uses all the rest
};

}  // namespace lockstep::parallel
