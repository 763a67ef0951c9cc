// The store of the processes of one host: rank 0 has a thread that holds the table (UnixStoreServer), and every rank is a
// client of it (UnixStore) over an abstract Unix socket. Both ends look at the other's user first; the kernel vouches for
// it. What comes after that is checked all the same: a peer may be another run, or another program.
//
// Internal to parallel/: users reach it through init_process_group.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/deadline.h"
#include "lockstep/parallel/socket_internal.h"
#include "lockstep/parallel/store.h"
#include "lockstep/parallel/store_frames_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

// Holds the table until it is destroyed; the clients' calls then fail. Never throws after construction: a client that
// does not keep to the rules loses its connection, the others go on.
class UnixStoreServer {
 public:
  // `listener` as from listen_abstract. Throws CommError where thread or descriptors cannot be had.
  UnixStoreServer(Descriptor listener, const JobId& job, int size);
  ~UnixStoreServer();
  UnixStoreServer(const UnixStoreServer&) = delete;
  UnixStoreServer& operator=(const UnixStoreServer&) = delete;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

struct UnixStoreOptions {
  std::string socket;   // its abstract name
  std::string address;  // for messages: "127.0.0.1:29500"
  JobId job;
  int rank = 0;
  int size = 1;
};

// How a server, or what stands in its place, took a hello.
enum class Welcome {
  kYes,
  kNobody,        // nothing listens there
  kGone,          // it closed before it answered
  kSilent,        // it accepted and does not answer
  kOtherUser,     // it belongs to another user
  kOtherVersion,  // another version of Lockstep
  kOtherJob,      // another run
  kOtherSize,     // the same run, with another number of ranks
};

struct Greeting {
  Welcome welcome = Welcome::kNobody;
  Peer server;
  std::string detail;  // the server's version or number of ranks, or the error of the system
  Descriptor socket;   // with kYes
};

// Connects once and says hello.
Greeting greet(const UnixStoreOptions& options, Deadline deadline);

class UnixStore final : public Store {
 public:
  using Store::get;
  using Store::wait;
  // `greeting` with kYes. With a `server`, the store owns it, and it ends with the store.
  UnixStore(UnixStoreOptions options, Greeting greeting, std::unique_ptr<UnixStoreServer> server = nullptr);
  ~UnixStore() override;
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  bool delete_key(const std::string& key) override;

  // A connection whose closing, by the death of this process too, sets those of `keys` that are not there by then.
  Descriptor leave_will(const std::vector<std::string>& keys, const std::string& value);

 private:
  // Asks and waits for the answer; `what` is for messages: `get "key"`.
  std::vector<std::string> ask(StoreOp op, const std::vector<std::string>& fields, const std::string& what,
                               std::chrono::milliseconds timeout);
  StoreMessage exchange(const Descriptor& socket, const std::string& request, const std::string& what,
                        std::chrono::milliseconds timeout) const;
  Descriptor take_connection(std::chrono::milliseconds timeout);

  UnixStoreOptions options_;
  std::unique_ptr<UnixStoreServer> server_;
  pid_t server_pid_;
  std::mutex mutex_;
  std::vector<Descriptor>
      idle_;  // a call has a connection of its own, so that calls of other threads do not wait for it
};

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
