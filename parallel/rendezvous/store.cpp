#include "lockstep/parallel/rendezvous/store.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

// --- the calls ------------------------------------------------------------------------------------------------------

void Store::set(const std::string& key, const std::string& value) {
  request({.op = StoreOp::kSet, .keys = {key}, .values = {value}}, timeout());
}

std::string Store::get(const std::string& key, std::chrono::milliseconds timeout) {
  return request({.op = StoreOp::kGet, .keys = {key}}, timeout);
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) {
  const std::string text = request({.op = StoreOp::kAdd, .keys = {key}, .values = {std::to_string(amount)}}, timeout());
  const auto sum = whole_number<std::int64_t>(text);
  if (!sum)
    throw CommError(fmt::format("store: add to {}: the answer {} is not a number", in_quotes(key), in_quotes(text)));
  return *sum;
}

std::string Store::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  return request({.op = StoreOp::kCompareSet, .keys = {key}, .values = {expected, desired}}, timeout());
}

void Store::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  if (!keys.empty()) request({.op = StoreOp::kWait, .keys = keys}, timeout);
}

bool Store::delete_key(const std::string& key) {
  return request({.op = StoreOp::kDelete, .keys = {key}}, timeout()) == "1";
}

bool Store::check(const std::vector<std::string>& keys) {
  return keys.empty() || request({.op = StoreOp::kCheck, .keys = keys}, timeout()) == "1";
}

std::unique_ptr<LastWill> Store::leave_last_will(const std::vector<std::string>&, const std::string&) {
  return nullptr;
}

// --- threads of one process -----------------------------------------------------------------------------------------

struct InProcessStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  StoreTable table;
};

InProcessStore::InProcessStore() : state_(std::make_unique<State>()) {}
InProcessStore::~InProcessStore() = default;

std::string InProcessStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  check_store_request(request);
  std::unique_lock lock(state_->mutex);
  for (Deadline deadline(timeout);;) {
    if (auto result = state_->table.execute(request)) {
      if (changes_table(request.op)) state_->changed.notify_all();
      return std::move(*result);
    }
    const std::chrono::milliseconds slice = deadline.slice();  // first: it may move the deadline
    if (deadline.passed())
      throw CommTimeout(fmt::format("store: no process has set {} within {} ms",
                                    in_quotes(*state_->table.first_missing(request.keys)), timeout.count()));
    state_->changed.wait_for(lock, slice);
  }
}

namespace {

// The last-will entry of a thread takes effect only when it is destroyed.
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
  check_store_request({.op = StoreOp::kLastWill, .keys = keys, .values = {value}});
  return std::make_unique<ThreadWill>([state = state_.get(), keys, value] {
    const std::lock_guard lock(state->mutex);
    state->table.set_missing(keys, value);
    state->changed.notify_all();
  });
}

// --- a prefix before every key --------------------------------------------------------------------------------------

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix)), store_(std::move(store)) {
  LOCKSTEP_CHECK(store_ != nullptr, "PrefixStore: the store under the prefix {} is null", in_quotes(prefix_));
  set_timeout(store_->timeout());
}

std::vector<std::string> PrefixStore::prefixed(std::vector<std::string> keys) const {
  for (std::string& key : keys) key.insert(0, prefix_);
  return keys;
}

std::string PrefixStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  return store_->request({.op = request.op, .keys = prefixed(request.keys), .values = request.values}, timeout);
}

std::unique_ptr<LastWill> PrefixStore::leave_last_will(const std::vector<std::string>& keys, const std::string& value) {
  return store_->leave_last_will(prefixed(keys), value);
}

}  // namespace lockstep::parallel
