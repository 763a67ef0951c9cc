// A NCCL communicator that never blocks for longer than its deadline. Every call's status is checked. Not installed.
#pragma once

#include <nccl.h>

#include <memory>
#include <mutex>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/peer_watch_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"
#include "lockstep/tensor/callback.h"

namespace lockstep::parallel::nccl {

// Throw DeviceError, CommError with the library's own text unless `status` is success.
void check(cudaError_t status, const char* call);
void check(ncclResult_t status, const char* call);

// Makes the device this thread's, and returns the stream of its kernels.
cudaStream_t compute_stream(Device device);

class Communicator {
 public:
  // All ranks of the group. Throws CommTimeout where some do not come.
  Communicator(const Rendezvous& place, Device device, std::chrono::milliseconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Calls `body`, which starts something on the communicator, and returns when NCCL has started it. Throws CommError.
  void run(const char* what, FunctionRef<ncclResult_t(ncclComm_t comm)> body);
  // What went wrong behind our back; empty where nothing did.
  std::string async_error();
  // Ends the kernels that wait for other ranks. By any thread.
  void abort() noexcept;

  // Memory that NCCL knows (registered, where it can be), given back with the last owner.
  static Ref<Storage> allocate(const std::shared_ptr<Communicator>& communicator, std::size_t bytes);

  PeerWatch& watch() { return *watch_; }
  Device device() const { return device_; }
  cudaStream_t stream() const { return stream_; }

 private:
  void settle(const char* what, ncclResult_t status, Deadline& deadline);
  void finalize();

  Device device_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // of the communicator: an abort may come at any time
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<PeerWatch> watch_;
};

}  // namespace lockstep::parallel::nccl
