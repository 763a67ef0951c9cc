// What groups leave in the store that their ranks met in.
#pragma once

#include <mutex>
#include <set>

#include "tests/support/groups.h"

// Another store, and which keys were put into it through this one.
class ListedStore final : public ls::parallel::Store {
 public:
  explicit ListedStore(std::shared_ptr<ls::parallel::Store> store) : store_(std::move(store)) {}

  std::string request(const ls::parallel::StoreRequest& request, std::chrono::milliseconds timeout) override {
    using ls::parallel::StoreOp;
    std::string result = store_->request(request, timeout);
    if (request.op == StoreOp::kSet || request.op == StoreOp::kAdd) note(request.keys.at(0), true);
    if (request.op == StoreOp::kDelete) note(request.keys.at(0), false);
    // An empty result may be that of a key that does not exist.
    if (request.op == StoreOp::kCompareSet && result == request.values.at(1) && !result.empty())
      note(request.keys.at(0), true);
    return result;
  }
  std::set<std::string> keys() {
    const std::lock_guard lock(mutex_);
    return keys_;
  }

 private:
  void note(const std::string& key, bool is_there) {
    const std::lock_guard lock(mutex_);
    if (is_there)
      keys_.insert(key);
    else
      keys_.erase(key);
  }

  std::shared_ptr<ls::parallel::Store> store_;
  std::mutex mutex_;
  std::set<std::string> keys_;
};

// On every rank: makes a group in `store`, and others from it. Only what numbers groups of one name, and
// where their ranks are, stays in the store.
inline void check_no_keys_left(const ls::parallel::InitOptions& options, ListedStore& store) {
  const Group group = ls::parallel::init_process_group(options);
  group->barrier();  // every rank has deleted its keys of the formation
  const std::set<std::string> before = store.keys();
  for (const std::string& key : before) CHECK_MESSAGE((contains(key, "/rendezvous/") || contains(key, "/host/")), key);
  group->barrier();
  for (int i = 0; i < 5; ++i) {
    const bool is_last = group->rank() == group->size() - 1;
    const Group part = group->split(is_last ? -1 : i % 2 * (group->rank() / 2)), all = group->duplicate();
    all->barrier();
  }
  group->barrier();
  for (const std::string& key : store.keys()) CHECK_MESSAGE(before.contains(key), key);
  for (const std::string& key : before) CHECK_MESSAGE(store.keys().contains(key), key);
  group->barrier();
}

// The same for a backend whose ranks are processes.
inline void check_no_keys_left(const std::string& backend) {
  const std::string path = backend + ".keys";
  check_processes(4, [&](int rank) {
    const auto store = std::make_shared<ListedStore>(
        std::make_shared<ls::parallel::FileStore>(path, ls::parallel::FileStoreOptions{.world_size = 4}));
    check_no_keys_left({.backend = backend, .world_size = 4, .rank = rank, .store = store}, *store);
  });
}
