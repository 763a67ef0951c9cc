#include "lockstep/parallel/rendezvous/store.h"

#include <charconv>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/store_table_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

// --- the table ----------------------------------------------------------------------------------------------------------

void check_store_key(const std::string& key) {
  LOCKSTEP_CHECK(key.size() <= kMaxStoreKey, "store: the key {} has {} bytes, at most {} are allowed", in_quotes(key),
                 key.size(), kMaxStoreKey);
}

void check_store_value(const std::string& key, const std::string& value) {
  check_store_key(key);
  LOCKSTEP_CHECK(value.size() <= kMaxStoreValue, "store: the value of {} has {} bytes, at most {} are allowed",
                 in_quotes(key), value.size(), kMaxStoreValue);
}

void check_store_keys(const std::vector<std::string>& keys) {
  LOCKSTEP_CHECK(keys.size() <= kMaxWaitKeys, "store: wait for {} keys, at most {} are allowed at once", keys.size(),
                 kMaxWaitKeys);
  std::size_t bytes = 0;
  for (const std::string& key : keys) {
    check_store_key(key);
    bytes += key.size();
  }
  LOCKSTEP_CHECK(bytes <= kMaxStoreValue, "store: wait for keys of {} bytes together, at most {} are allowed", bytes,
                 kMaxStoreValue);
}

namespace {

std::size_t entry_bytes(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kStoreEntryBytes;
}

}  // namespace

std::size_t StoreTable::bytes_with(const std::string& key, const std::string& value) const {
  const std::string* old = find(key);
  return bytes_ - (old ? entry_bytes(key, *old) : 0) + entry_bytes(key, value);
}

bool StoreTable::has_room(const std::string& key, const std::string& value) const {
  return bytes_with(key, value) <= kMaxStoreBytes;
}

void StoreTable::set(const std::string& key, const std::string& value) {
  check_store_value(key, value);
  LOCKSTEP_CHECK(has_room(key, value), "store: no room for {} with {} bytes: all keys and values have {}, of {}",
                 in_quotes(key), value.size(), bytes_, kMaxStoreBytes);
  bytes_ = bytes_with(key, value);
  values_.insert_or_assign(key, value);
}

std::int64_t StoreTable::add(const std::string& key, std::int64_t amount) {
  std::int64_t sum = 0;
  if (const std::string* text = find(key)) {
    const char* const end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, sum);
    LOCKSTEP_CHECK(error == std::errc() && stop == end, "store: add: {} holds {}, which is not a number",
                   in_quotes(key), in_quotes(*text));
  }
  std::int64_t result = 0;
  LOCKSTEP_CHECK(!__builtin_add_overflow(sum, amount, &result), "store: add: {} holds {}; {} more is too large",
                 in_quotes(key), sum, amount);
  set(key, std::to_string(result));
  return result;
}

std::string StoreTable::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  check_store_value(key, expected);
  check_store_value(key, desired);
  const std::string* current = find(key);
  if (current ? (expected.empty() || *current != expected) : !expected.empty()) return current ? *current : "";
  set(key, desired);
  return desired;
}

std::vector<std::string> StoreTable::set_missing(const std::vector<std::string>& keys, const std::string& value) {
  std::vector<std::string> changed;
  for (const std::string& key : keys) {
    if (find(key) || !has_room(key, value)) continue;
    set(key, value);
    changed.push_back(key);
  }
  return changed;
}

bool StoreTable::delete_key(const std::string& key) {
  const auto at = values_.find(key);
  if (at == values_.end()) return false;
  bytes_ -= entry_bytes(at->first, at->second);
  values_.erase(at);
  return true;
}

const std::string* StoreTable::find(const std::string& key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

const std::string* StoreTable::first_missing(const std::vector<std::string>& keys) const {
  for (const std::string& key : keys) {
    if (!find(key)) return &key;
  }
  return nullptr;
}

std::unique_ptr<LastWill> Store::leave_last_will(const std::vector<std::string>&, const std::string&) {
  return nullptr;
}

// --- threads of one process ---------------------------------------------------------------------------------------------

struct InProcessStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  StoreTable table;

  // Changes the table under the lock and wakes those who wait.
  template <class Change>
  auto change(Change change) {
    const std::lock_guard lock(mutex);
    changed.notify_all();
    return change(table);
  }

  void wait(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
            std::chrono::milliseconds timeout) {
    Deadline deadline(timeout);
    while (const std::string* missing = table.first_missing(keys)) {
      const std::chrono::milliseconds slice = deadline.slice();  // first: it may move the deadline
      if (deadline.passed())
        throw CommTimeout(fmt::format("store: nobody has set {} within {} ms", in_quotes(*missing), timeout.count()));
      changed.wait_for(lock, slice);
    }
  }
};

InProcessStore::InProcessStore() : state_(std::make_unique<State>()) {}
InProcessStore::~InProcessStore() = default;

void InProcessStore::set(const std::string& key, const std::string& value) {
  state_->change([&](StoreTable& table) { table.set(key, value); });
}

std::string InProcessStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  check_store_key(key);
  std::unique_lock lock(state_->mutex);
  state_->wait(lock, {key}, timeout);
  return *state_->table.find(key);
}

std::int64_t InProcessStore::add(const std::string& key, std::int64_t amount) {
  return state_->change([&](StoreTable& table) { return table.add(key, amount); });
}

std::string InProcessStore::compare_set(const std::string& key, const std::string& expected,
                                        const std::string& desired) {
  return state_->change([&](StoreTable& table) { return table.compare_set(key, expected, desired); });
}

void InProcessStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  check_store_keys(keys);
  std::unique_lock lock(state_->mutex);
  state_->wait(lock, keys, timeout);
}

bool InProcessStore::delete_key(const std::string& key) {
  return state_->change([&](StoreTable& table) { return table.delete_key(key); });
}

namespace {

// Threads end in one way alone: they destroy what they have.
class ThreadWill final : public LastWill {
 public:
  explicit ThreadWill(Callback<void()> carry_out) : carry_out_(std::move(carry_out)) {}
  ~ThreadWill() override {
    if (carry_out_) carry_out_();
  }
  void cancel() override { carry_out_ = {}; }

 private:
  Callback<void()> carry_out_;
};

}  // namespace

std::unique_ptr<LastWill> InProcessStore::leave_last_will(const std::vector<std::string>& keys,
                                                          const std::string& value) {
  check_store_keys(keys);
  for (const std::string& key : keys) check_store_value(key, value);
  return std::make_unique<ThreadWill>([state = state_.get(), keys, value] {
    state->change([&](StoreTable& table) { table.set_missing(keys, value); });
  });
}

// --- a prefix before every key ------------------------------------------------------------------------------------------

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix)), store_(std::move(store)) {
  LOCKSTEP_CHECK(store_ != nullptr, "PrefixStore: the store under the prefix {} is null", in_quotes(prefix_));
  set_timeout(store_->timeout());
}

void PrefixStore::set(const std::string& key, const std::string& value) { store_->set(prefix_ + key, value); }

std::string PrefixStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return store_->get(prefix_ + key, timeout);
}

std::int64_t PrefixStore::add(const std::string& key, std::int64_t amount) {
  return store_->add(prefix_ + key, amount);
}

std::string PrefixStore::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  return store_->compare_set(prefix_ + key, expected, desired);
}

std::vector<std::string> PrefixStore::prefixed(const std::vector<std::string>& keys) const {
  std::vector<std::string> out;
  for (const std::string& key : keys) out.push_back(prefix_ + key);
  return out;
}

void PrefixStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  store_->wait(prefixed(keys), timeout);
}

bool PrefixStore::delete_key(const std::string& key) { return store_->delete_key(prefix_ + key); }

std::unique_ptr<LastWill> PrefixStore::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  return store_->leave_last_will(prefixed(keys), value);
}

}  // namespace lockstep::parallel
