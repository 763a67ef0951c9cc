#include "lockstep/parallel/comm/backends/nccl_communicator_internal.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"

namespace lockstep::parallel::nccl {
namespace {

constexpr std::chrono::microseconds kBetweenLooks{50};
constexpr std::chrono::seconds kFarewell{5};  // for an orderly ncclCommFinalize

// Returns the id that rank 0 has made, which the other ranks read from the store.
ncclUniqueId meet(const Rendezvous& place) {
  ncclUniqueId id;
  if (place.rank == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    place.store->set("nccl/id", std::string(id.internal, sizeof(id.internal)));
    return id;
  }
  const std::string given = place.store->get("nccl/id");
  if (given.size() != sizeof(id.internal)) throw CommError("nccl: rank 0 left no id in the store");
  std::memcpy(id.internal, given.data(), sizeof(id.internal));
  return id;
}

// Communication memory. It is deregistered before it is freed, and both before the communicator ends, if that is
// alive.
struct Memory {
  std::weak_ptr<Communicator> communicator;
  Device device;
  void* data = nullptr;
  void* handle = nullptr;
  ~Memory() {
    if (!data) return;
    // Errors after a failure, or at the end of the process, are ignored. Memory is freed even without a communicator.
    try {
      check(cudaStreamSynchronize(compute_stream(device)), "cudaStreamSynchronize");
      if (const auto owner = communicator.lock(); owner && handle)
        owner->run("ncclCommDeregister", [&](ncclComm_t comm) { return ncclCommDeregister(comm, handle); });
    } catch (const Error&) {
    }
    static_cast<void>(ncclMemFree(data));
  }
};

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());  // clears the error, unless it is sticky
  throw DeviceError(fmt::format("nccl: {}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

void check(ncclResult_t status, const char* call) {
  if (status != ncclSuccess) [[unlikely]]
    throw CommError(fmt::format("nccl: {}: {} ({})", call, ncclGetErrorString(status), ncclGetLastError(nullptr)));
}

cudaStream_t compute_stream(Device device) {
  const auto stream = static_cast<cudaStream_t>(accelerator(device).compute_stream(device.index()));
  check(cudaSetDevice(device.index()), "cudaSetDevice");  // this module has its own CUDA runtime
  return stream;
}

Communicator::Communicator(const Rendezvous& place, Device device, std::chrono::milliseconds timeout)
    : device_(device), timeout_(timeout) {
  compute_stream(device);
  watch_ = std::make_unique<PeerWatch>(
      PeerWatchOptions{.rank = place.rank, .size = place.size, .store = place.store, .members = place.members}, [this] {
        static_cast<void>(cudaSetDevice(device_.index()));  // NCCL restores this device, else GPU 0
        abort();
      });
  try {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    const ncclUniqueId id = meet(place);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Deadline deadline(timeout_);
    ncclResult_t status;
    {
      const std::lock_guard lock(mutex_);
      status = ncclCommInitRankConfig(&comm_, place.size, id, place.rank, &config);
    }
    complete("ncclCommInitRankConfig", status, deadline);
    watch_->remember_holder();
  } catch (const Error& error) {
    watch_->fail(fmt::format("{}: {}", rank_text(place.rank, place.members), error.what()));
    if (stream_) static_cast<void>(cudaStreamDestroy(stream_));
    throw;
  }
}

Communicator::~Communicator() {
  try {
    compute_stream(device_);
    if (!watch_->has_failed()) finalize();
  } catch (const Error&) {  // aborted below
  }
  abort();
  watch_.reset();
  if (stream_) static_cast<void>(cudaStreamDestroy(stream_));
}

// Ends the communicator in order, if the other ranks still do.
void Communicator::finalize() {
  Deadline deadline(kFarewell);
  ncclResult_t status;
  {
    const std::lock_guard lock(mutex_);
    if (!comm_) return;
    status = ncclCommFinalize(comm_);
  }
  complete("ncclCommFinalize", status, deadline);
  const std::lock_guard lock(mutex_);
  if (comm_) check(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
}

void Communicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_) static_cast<void>(ncclCommAbort(std::exchange(comm_, nullptr)));
}

void Communicator::run(const char* what, FunctionRef<ncclResult_t(ncclComm_t comm)> body) {
  Deadline deadline(timeout_);
  ncclResult_t status;
  {
    const std::lock_guard lock(mutex_);
    if (!comm_) throw CommError(fmt::format("nccl: {}: {}", what, watch_->failure()));
    status = body(comm_);
  }
  complete(what, status, deadline);
}

// Polls a non-blocking communicator until it no longer reports "in progress".
void Communicator::complete(const char* what, ncclResult_t status, Deadline& deadline) {
  if (status != ncclInProgress) check(status, what);
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (!comm_) throw CommError(fmt::format("nccl: {}: {}", what, watch_->failure()));
      check(ncclCommGetAsyncError(comm_, &status), "ncclCommGetAsyncError");
      if (status == ncclSuccess) return;
      if (status != ncclInProgress) check(status, what);
    }
    if (deadline.passed())
      throw CommTimeout(
          fmt::format("nccl: {}: ranks did not connect within {} ms: {}", what, timeout_.count(), watch_->progress()));
    std::this_thread::sleep_for(kBetweenLooks);  // NCCL can only be polled
  }
}

std::string Communicator::async_error() {
  const std::lock_guard lock(mutex_);
  if (!comm_) return watch_->failure();
  ncclResult_t status = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &status);
  if (asked != ncclSuccess) status = asked;
  if (status == ncclSuccess || status == ncclInProgress) return {};
  return fmt::format("{} ({})", ncclGetErrorString(status), ncclGetLastError(comm_));
}

Ref<Storage> Communicator::allocate(const std::shared_ptr<Communicator>& communicator, std::size_t bytes) {
  compute_stream(communicator->device());
  const auto memory = std::make_shared<Memory>();
  memory->device = communicator->device();
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  check(ncclMemAlloc(&memory->data, size), "ncclMemAlloc");
  memory->communicator = communicator;
  communicator->run("ncclCommRegister", [&](ncclComm_t comm) {
    const ncclResult_t status = ncclCommRegister(comm, memory->data, size, &memory->handle);
    return status == ncclInvalidUsage ? ncclSuccess : status;  // this NCCL, or this machine, cannot register memory
  });
  return Storage::wrap(memory->data, bytes, communicator->device(), memory);
}

}  // namespace lockstep::parallel::nccl
