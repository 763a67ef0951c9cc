// An NCCL communicator that never blocks past its deadline. Every call's status is checked. Not installed.
#pragma once

#include <nccl.h>

#include <memory>
#include <mutex>

#include "lockstep/base/callback.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/peer_watch_internal.h"
#include "lockstep/parallel/rendezvous/deadline_internal.h"

namespace lockstep::parallel::nccl {

// Throw DeviceError or CommError with the library's own text unless `status` is success.
void check(cudaError_t status, const char* call);
void check(ncclResult_t status, const char* call);

// Sets the calling thread's device, and returns the stream of its kernels.
cudaStream_t compute_stream(Device device);

class Communicator {
 public:
  // Connects all ranks of the group. Throws CommTimeout if a rank is missing.
  Communicator(const Rendezvous& place, Device device, std::chrono::milliseconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Calls `body`, which starts something on the communicator, and returns when NCCL has started it. Throws CommError.
  void run(const char* what, FunctionRef<ncclResult_t(ncclComm_t comm)> body);
  // Returns the text of an asynchronous error of NCCL; empty if there is none.
  std::string async_error();
  // Ends the kernels that wait for other ranks. May be called by any thread.
  void abort() noexcept;

  // Allocates with ncclMemAlloc and registers the memory if possible. The last owner frees it.
  static Ref<Storage> allocate(const std::shared_ptr<Communicator>& communicator, std::size_t bytes);

  PeerWatch& watch() { return *watch_; }
  Device device() const { return device_; }
  cudaStream_t stream() const { return stream_; }

 private:
  void complete(const char* what, ncclResult_t status, Deadline& deadline);
  void finalize();

  Device device_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // guards comm_, which any thread may abort
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<PeerWatch> watch_;
};

}  // namespace lockstep::parallel::nccl
