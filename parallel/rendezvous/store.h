/// \file
/// Store: a small table of strings, through which the ranks of a job exchange data while they connect.
///
/// Values are bytes. Keys and values are limited (kMaxStoreKey, kMaxStoreValue in limits_internal.h). A call that
/// waits throws a CommTimeout naming the key after timeout(), or after the time passed to it. Any number of threads
/// may use one store. There are stores for threads of one process (InProcessStore), for processes that share a file
/// (FileStore) or connect over TCP (TcpStore), and for several users of one store (PrefixStore).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

class SharedTable;

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
  /// Sets the key to `desired` if it holds `expected`, or if it does not exist and `expected` is empty. Returns the
  /// value of the key afterwards; if it does not exist, `expected`, as PyTorch does.
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
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  std::shared_ptr<SharedTable> table_;
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

struct FileStoreOptions {
  int world_size = -1;  ///< number of users: the file is kept until this many have opened it; -1: any number
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< time limit of calls that wait
};

/// A store in a file, shared by processes of one user on one host.
///
/// The first user creates the file and the last one removes it. It must be a regular file of this user with mode 0600,
/// or not exist; symbolic links are not followed. A file left by an earlier run, none of whose processes is alive, is
/// overwritten. A broken file is an IoError naming the position. There are no last-will entries: this store does not
/// notice the end of a process.
class FileStore final : public Store {
 public:
  /// Throws IoError if the file cannot be opened, or is not a FileStore's file with the properties above.
  explicit FileStore(const std::string& path, const FileStoreOptions& options = {});
  ~FileStore() override;
  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct TcpStoreOptions {
  bool is_server = false;    ///< true: this process holds the table, until this object is destroyed
  std::string token = {};    ///< the job's token, 128 random bits or more; empty: from LOCKSTEP_JOB_TOKEN
  bool authenticate = true;  ///< false: plain TCP; every process that reaches the port may join, with a warning
  std::string job = {};      ///< for example run id, restart count and world size: different jobs never mix
  std::string name = {};     ///< name of this store; different stores of a job never mix
  std::chrono::milliseconds timeout =
      std::chrono::seconds(60);  ///< limit of the look-up of `host`, of connecting, and of calls that wait
};

/// A store of ranks that connect over TCP. One rank, usually rank 0, holds the table.
///
/// The server listens on the address of `host` alone. Connections are TLS 1.3 with the job's token as pre-shared key:
/// only processes that have the token, and name this store of this job, can connect. On the network the data can
/// neither be read nor changed.
class TcpStore final : public Store {
 public:
  /// With .is_server and port 0 the system chooses a free port. A client waits for its server; all addresses of `host`
  /// are tried. Throws InvalidArgument without a token to authenticate with, CommError if the server cannot listen or
  /// the endpoint does not belong to this job, CommTimeout if there is no reply.
  TcpStore(const std::string& host, int port, const TcpStoreOptions& options = {});
  int port() const { return port_; }  ///< the server's port

  std::string request(const StoreRequest& request, std::chrono::milliseconds timeout) override;
  std::unique_ptr<LastWill> leave_last_will(const std::vector<std::string>& keys, const std::string& value) override;

 private:
  std::shared_ptr<Store> store_;  // the server, or a client of the server
  int port_ = 0;
};

}  // namespace lockstep::parallel
