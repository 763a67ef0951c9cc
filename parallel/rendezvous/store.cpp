#include "lockstep/parallel/rendezvous/store.h"

#include <mutex>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/parallel/rendezvous/store_protocol_internal.h"

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

std::string SharedTable::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  check_store_request(request);
  std::unique_lock lock(mutex_);
  for (Deadline deadline(timeout);;) {
    if (auto result = table_.execute(request)) {
      changed_.notify_all();
      return std::move(*result);
    }
    const std::chrono::milliseconds slice = deadline.slice();  // first: it may move the deadline
    if (deadline.passed())
      throw CommTimeout(fmt::format("store: no process has set {} within {} ms",
                                    in_quotes(*table_.first_missing(request.keys)), timeout.count()));
    changed_.wait_for(lock, slice);
  }
}

std::optional<std::string> SharedTable::execute(const StoreRequest& request) {
  const std::lock_guard lock(mutex_);
  auto result = table_.execute(request);
  changed_.notify_all();
  return result;
}

void SharedTable::set_missing(const std::vector<std::string>& keys, const std::string& value) {
  const std::lock_guard lock(mutex_);
  table_.set_missing(keys, value);
  changed_.notify_all();
}

std::uint64_t SharedTable::changes() {
  const std::lock_guard lock(mutex_);
  return table_.changes();
}

ThreadLastWill::ThreadLastWill(std::vector<std::string> keys, std::string value, SetMissing set_missing)
    : keys_(std::move(keys)), value_(std::move(value)), set_missing_(std::move(set_missing)) {
  check_store_request({.op = StoreOp::kLastWill, .keys = keys_, .values = {value_}});
}

InProcessStore::InProcessStore() : table_(std::make_shared<SharedTable>()) {}

std::string InProcessStore::request(const StoreRequest& request, std::chrono::milliseconds timeout) {
  return table_->request(request, timeout);
}

std::unique_ptr<LastWill> InProcessStore::leave_last_will(const std::vector<std::string>& keys,
                                                          const std::string& value) {
  return std::make_unique<ThreadLastWill>(
      keys, value, [table = table_](const auto& missing, const auto& text) { table->set_missing(missing, text); });
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
