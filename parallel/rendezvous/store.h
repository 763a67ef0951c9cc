/// \file
/// Store: a small table of strings that the ranks of a job share while they connect to each other.
///
/// Values are bytes. Keys and values are limited (kMaxStoreKey, kMaxStoreValue in limits_internal.h). A call that waits
/// gives up after timeout(), or the time it is given, with a CommTimeout that names the key. Any number of threads may use
/// one store.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tensor/error.h"

namespace lockstep::parallel {

/// A last-will entry: keys that a store sets when the process that asked for it ends, or when this object is destroyed, which
/// has to be before the store is.
class LastWill {
 public:
  virtual ~LastWill() = default;
  virtual void cancel() = 0;  ///< destroying this object has no effect any more
};

/// The operations of a store; their numbers are part of the protocol between client and server. The calls of Store say what
/// each operation does. One more operation is a line here, a call of Store, and a line and a case in store_protocol.cpp.
enum class StoreOp : std::uint8_t {
  kSet = 1,
  kGet,
  kAdd,
  kCompareSet,
  kWait,
  kDelete,
  kCheck,
  kLastWill,  ///< of the connection that sends it: when it closes, the store sets those of the keys that do not exist
  kServerId,  ///< the server's random name, which tells a client that reconnects whether the table is still the same
};

/// A request to a store. Numbers are decimal text.
struct StoreRequest {
  StoreOp op = StoreOp::kGet;            ///< what to do ...
  std::vector<std::string> keys = {};    ///< ... with these keys ...
  std::vector<std::string> values = {};  ///< ... and these values, whose number follows from the operation
};

/// A small shared table, as the head of this file says. A store of another kind implements `request`.
class Store {
 public:
  virtual ~Store() = default;

  void set(const std::string& key, const std::string& value);  ///< puts the value under the key
  /// Waits until the key exists, and returns its value.
  std::string get(const std::string& key) { return get(key, timeout()); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  /// Adds to the number under the key (0 where there is none; kept as decimal text) and returns the sum.
  std::int64_t add(const std::string& key, std::int64_t amount);
  /// Sets the key to `desired` where it holds `expected` (or, with an empty `expected`, where it does not exist). Returns
  /// the value of the key afterwards; empty where it does not exist.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  /// Waits until all keys exist.
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  bool delete_key(const std::string& key);           ///< returns whether the key existed
  bool check(const std::vector<std::string>& keys);  ///< returns whether all keys exist, without waiting
  /// Leaves a last-will entry: it sets those of `keys` that do not exist by then. Null from a store that does not notice the
  /// end of a process, as by default.
  virtual std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value);

  /// Carries out one request and returns its result: a value, a sum in decimal, "1" or "0" for yes or no, or nothing. Throws
  /// CommTimeout where a request waits for longer than `timeout`, InvalidArgument past a limit.
  virtual std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) = 0;

  std::chrono::milliseconds timeout() const { return timeout_; }               ///< how long a call waits
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }  ///< for calls that begin later

 private:
  std::chrono::milliseconds timeout_ = std::chrono::seconds(60);
};

/// The store of ranks that are threads of one process.
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

/// Another store with a prefix before every key, which keeps several users of one store apart.
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
