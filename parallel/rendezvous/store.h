/// \file
/// Store: a small table of strings, through which the ranks of a job exchange data while they connect.
///
/// Values are bytes. Keys and values are limited (kMaxStoreKey, kMaxStoreValue in limits_internal.h). A call that
/// waits throws a CommTimeout naming the key after timeout(), or after the time passed to it. Any number of threads
/// may use one store.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

/// A last-will entry: keys that a store sets when the process that left the entry ends, or when this object is
/// destroyed. Destroy the object before the store.
class LastWill {
 public:
  virtual ~LastWill() = default;
  virtual void cancel() = 0;  ///< withdraws the entry: destroying this object then has no effect
};

/// The operations of a store; their numbers are part of the protocol between client and server. The methods of Store
/// describe them. A new operation needs a line here, a method of Store, and a line and a case in store_protocol.cpp.
enum class StoreOp : std::uint8_t {
  kSet = 1,
  kGet,
  kAdd,
  kCompareSet,
  kWait,
  kDelete,
  kCheck,
  kLastWill,  ///< when the sending connection closes, the store sets those of the keys that do not exist
  kServerId,  ///< the server's random id, by which a reconnecting client verifies that the table is the same
};

/// A request to a store. Numbers are decimal text.
struct StoreRequest {
  StoreOp op = StoreOp::kGet;            ///< the operation
  std::vector<std::string> keys = {};    ///< its keys
  std::vector<std::string> values = {};  ///< its values; their number depends on the operation
};

/// A small shared table; the top of this header describes it. A new kind of store implements `request`.
class Store {
 public:
  virtual ~Store() = default;

  void set(const std::string& key, const std::string& value);  ///< sets the key to the value
  /// Waits until the key exists, and returns its value.
  std::string get(const std::string& key) { return get(key, timeout()); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  /// Adds to the number under the key (0 if the key does not exist; stored as decimal text) and returns the sum.
  std::int64_t add(const std::string& key, std::int64_t amount);
  /// Sets the key to `desired` if it holds `expected` (or, with an empty `expected`, if it does not exist). Returns
  /// the value of the key afterwards; empty if it does not exist.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  /// Waits until all keys exist.
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  bool delete_key(const std::string& key);           ///< returns whether the key existed
  bool check(const std::vector<std::string>& keys);  ///< returns whether all keys exist, without waiting
  /// Leaves a last-will entry, which sets those of `keys` that do not exist when it takes effect. By default returns
  /// null: the store does not notice the end of a process.
  virtual std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value);

  /// Carries out one request and returns its result: a value, a sum in decimal, "1" or "0" for yes or no, or nothing.
  /// Throws CommTimeout if a request waits for longer than `timeout`, InvalidArgument if a limit is exceeded.
  virtual std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) = 0;

  std::chrono::milliseconds timeout() const { return timeout_; }               ///< time limit of calls that wait
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }  ///< applies to calls that begin later

 private:
  std::chrono::milliseconds timeout_ = std::chrono::seconds(60);
};

/// A store for ranks that are threads of one process.
class InProcessStore final : public Store {
 public:
  InProcessStore();
  ~InProcessStore() override;
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Another store with a prefix before every key, so that several users of one store do not collide.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  std::vector<std::string> prefixed(std::vector<std::string> keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace lockstep::parallel
