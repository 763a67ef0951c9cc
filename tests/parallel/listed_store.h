// What groups leave in the store that their ranks met in.
#pragma once

#include <mutex>
#include <set>

#include "tests/support/groups.h"

// Another store, and which keys were put into it through this one.
class ListedStore final : public ls::parallel::Store {
 public:
  using Store::get;
  using Store::wait;
  explicit ListedStore(std::shared_ptr<ls::parallel::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    note(key, true);
    store_->set(key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    note(key, true);
    return store_->add(key, amount);
  }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    const std::string value = store_->compare_set(key, expected, desired);
    if (value == desired && !value.empty()) note(key, true);  // an empty one may be that of a key that is not there
    return value;
  }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    store_->wait(keys, timeout);
  }
  bool delete_key(const std::string& key) override {
    note(key, false);
    return store_->delete_key(key);
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
