// A worker of UCX with an endpoint to every other rank of a group: tagged messages, for the backend ucc.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/comm/backends/transport_internal.h"

namespace lockstep::parallel {

// Channels besides those of the engine: the first message on a connection, and the addresses of UCC.
inline constexpr int kHelloChannel = kChannels, kAddressChannel = kChannels + 1;

// Throws CommError, "ucc: <what>: <text of UCX>", unless `status` is UCS_OK.
void check_ucx(ucs_status_t status, const char* what);
// Called once before anything else of UCX: UCX neither handles signals nor prints.
void quiet_ucx();

struct UcxOptions {
  std::string transports;  // UCX_TLS
  std::string device;      // UCX_NET_DEVICES: the network interface
  bool by_environment;     // whether the user's UCX_TLS and UCX_NET_DEVICES take precedence
  bool copies_sends;       // whether a send may be dropped, and its memory freed, before it is complete
};

class UcxRequest;

// All functions may be called by any thread.
class UcxWorker : public std::enable_shared_from_this<UcxWorker> {
 public:
  UcxWorker(const UcxOptions& options, int rank, int size);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  std::string address();
  // `detects_end`: whether the end of the peer closes the connection. UCX then does not use shared memory.
  void connect(int peer, std::string_view address, bool detects_end);
  // The group's secret, part of every tag: a message of a process that does not know it matches no receive.
  void set_token(std::uint64_t token) { token_ = token; }

  std::unique_ptr<UcxRequest> send(int to, int channel, const void* data, std::size_t bytes);
  std::unique_ptr<UcxRequest> receive(int from, int channel, void* data, std::size_t bytes);
  // Makes progress and returns whether the request is complete. Throws PeerLost if it never will be.
  bool finish(UcxRequest& request);
  void poll();  // makes progress
  bool is_closed(int peer) const { return peers_[static_cast<std::size_t>(peer)].is_closed; }
  // The moment at which this rank noticed that the connection has ended.
  std::chrono::steady_clock::time_point closed_at(int peer) const;

  // Disconnects, and ends the requests: afterwards UCX uses their memory no more. With `flush`, sends what was posted
  // first, for at most `timeout`.
  void close(bool flush, std::chrono::milliseconds timeout);

 private:
  friend class UcxRequest;
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    bool detects_end = false;
    std::atomic<bool> is_closed = false;
    std::atomic<std::chrono::steady_clock::rep> closed_at = 0;
  };
  struct Unsent {
    void* request;
    std::vector<std::byte> data;
  };

  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  void drop(UcxRequest& request);
  unsigned progress();
  bool is_complete(UcxRequest& request);
  void close_locked(bool flush, std::chrono::milliseconds timeout);

  const int rank_;
  const bool copies_sends_;
  std::atomic<std::uint64_t> token_ = 0;
  std::mutex mutex_;  // guards the members below, and UCX's objects
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;  // null: closed
  std::vector<Peer> peers_;
  std::vector<Unsent> unsent_;  // of sends that were dropped
};

// A posted send or receive.
class UcxRequest final : public Request {
 public:
  UcxRequest(int peer, std::shared_ptr<UcxWorker> worker, bool receives)
      : Request(peer), worker_(std::move(worker)), receives_(receives) {}
  ~UcxRequest() override { worker_->drop(*this); }
  UcxWorker& worker() const { return *worker_; }

 private:
  friend class UcxWorker;
  const std::shared_ptr<UcxWorker> worker_;
  const bool receives_;
  void* request_ = nullptr;  // null: complete
  std::vector<std::byte> copy_;
};

}  // namespace lockstep::parallel
