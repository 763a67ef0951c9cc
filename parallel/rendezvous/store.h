/// \file
/// Store: a small table of strings that the ranks of a job share while they find each other.
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

/// An entry that a store makes when the process that left it ends, or when this object is destroyed, which has to be before the
/// store is.
class LastWill {
 public:
  virtual ~LastWill() = default;
  virtual void cancel() = 0;  ///< destroying this object has no effect any more
};

/// A small shared table, as the head of this file says.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;  ///< puts the value under the key
  /// Waits until the key is there.
  std::string get(const std::string& key) { return get(key, timeout()); }
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  /// Adds to the number under the key (0 where there is none; kept as decimal text) and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  /// Sets the key to `desired` where it holds `expected` (or, with an empty `expected`, where it is not there). Returns
  /// what the key holds afterwards; empty where it is not there.
  virtual std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) = 0;
  /// Waits until all keys are there.
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }
  virtual void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  /// Returns whether the key was there.
  virtual bool delete_key(const std::string& key) = 0;
  /// Leaves a last will: it sets those of `keys` that are not there by then. Null from a store that does not notice the end of a
  /// process, as by default.
  virtual std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value);

  std::chrono::milliseconds timeout() const { return timeout_; }               ///< how long a call waits
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }  ///< for calls that begin later

 private:
  std::chrono::milliseconds timeout_ = std::chrono::seconds(60);
};

/// The store of ranks that are threads of one process.
class InProcessStore final : public Store {
 public:
  using Store::get;
  using Store::wait;
  InProcessStore();
  ~InProcessStore() override;
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool delete_key(const std::string& key) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Another store with a prefix before every key, so that several users of one store cannot meet.
class PrefixStore final : public Store {
 public:
  using Store::get;
  using Store::wait;
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool delete_key(const std::string& key) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  std::vector<std::string> prefixed(const std::vector<std::string>& keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace lockstep::parallel
