#include "lockstep/tensor/cuda/runtime_internal.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/tensor/memory/allocator_internal.h"

namespace lockstep::cuda {
namespace {

struct PerDevice {
  std::once_flag once;
  std::atomic<bool> is_prepared{false};
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  AllocationCounters counters;
  void* fault = nullptr;
};

// The driver's devices and the state of each; kept until the process ends.
struct Devices {
  Devices() {
    error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) count = 0;
    static_cast<void>(cudaGetLastError());  // clears the error
    list = std::vector<PerDevice>(static_cast<std::size_t>(count));
  }
  int count = 0;
  cudaError_t error = cudaSuccess;
  pid_t process = getpid();
  std::vector<PerDevice> list;
};
Devices& devices() {
  static Devices* const instance = new Devices;  // never destroyed: tensors in statics may outlive every other static
  return *instance;
}

constexpr std::size_t kWord = 4;
constexpr int kUnknown = -1;
thread_local int current = kUnknown;

struct Capture {
  CaptureMemory* memory = nullptr;  // null: no capture
  int device = kUnknown;
};
thread_local Capture capture;

void prepare(PerDevice& device, int index) {
  int pools = 0;
  check(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, index), "cudaDeviceGetAttribute");
  if (!pools)
    throw DeviceError(fmt::format("cuda:{}: the device has no stream-ordered memory (cudaMallocAsync)", index));
  check(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaDeviceGetDefaultMemPool(&device.pool, index), "cudaDeviceGetDefaultMemPool");
  std::uint64_t keep = UINT64_MAX;  // freed memory is cached until empty_cache
  check(cudaMemPoolSetAttribute(device.pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
  for (int peer = 0; peer < devices().count; ++peer) {
    int reachable = 0;
    if (peer != index) check(cudaDeviceCanAccessPeer(&reachable, peer, index), "cudaDeviceCanAccessPeer");
    if (!reachable) continue;
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = peer;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    check(cudaMemPoolSetAccess(device.pool, &access, 1), "cudaMemPoolSetAccess");
  }
  check(cudaHostAlloc(&device.fault, kFaultBytes, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
  std::memset(device.fault, 0, kFaultBytes);
  device.is_prepared.store(true);
}

PerDevice& here() {
  const int index = current_device();
  PerDevice& device = devices().list[static_cast<std::size_t>(index)];
  std::call_once(device.once, [&] { prepare(device, index); });
  return device;
}

bool waits_for_launches() {
  static const bool wanted = environment_number("LOCKSTEP_CUDA_SYNC", 0, 1) == 1;
  return wanted;
}

std::int64_t pool_attribute(const PerDevice& device, cudaMemPoolAttr attribute) {
  std::uint64_t value = 0;
  check(cudaMemPoolGetAttribute(device.pool, attribute, &value), "cudaMemPoolGetAttribute");
  return static_cast<std::int64_t>(value);
}

std::int64_t cached_bytes(const PerDevice& device) {
  return pool_attribute(device, cudaMemPoolAttrReservedMemCurrent) -
         pool_attribute(device, cudaMemPoolAttrUsedMemCurrent);
}

[[noreturn]] void throw_no_memory(const PerDevice& device, std::size_t bytes) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  throw DeviceError(fmt::format(
      "cuda:{}: out of memory: {} bytes requested; {} of {} are free, {} in live tensors, {} cached", current_device(),
      bytes, free, total, device.counters.stats(0).allocated_bytes, cached_bytes(device)));
}

// cudaMalloc is a call that may invalidate a capture; a thread in relaxed mode may make it.
cudaError_t relaxed_malloc(void** data, std::size_t bytes) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  const cudaError_t status = cudaMalloc(data, bytes);
  forget(status);
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  return status;
}

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());  // a non-sticky error is not reported again
  if (status == cudaErrorInitializationError && getpid() != devices().process)
    throw DeviceError(
        fmt::format("cuda: {}: this process was forked from one that uses CUDA, which CUDA does not support; "
                    "start it with exec, or fork before the first use of a cuda device",
                    call));
  throw DeviceError(fmt::format("cuda: {}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

void forget(cudaError_t status) noexcept {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
}

void check_launch(const char* op) {
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess && waits_for_launches() && !is_capturing()) status = cudaStreamSynchronize(stream());
  if (status != cudaSuccess) [[unlikely]]
    throw DeviceError(fmt::format("cuda:{}: {}: {} ({})", current_device(), op, cudaGetErrorString(status),
                                  cudaGetErrorName(status)));
}

int device_count() { return devices().count; }

std::string why_no_device() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "this machine has no NVIDIA driver";
  return devices().error == cudaSuccess ? "this machine has none" : cudaGetErrorString(devices().error);
}

// Queries the device even if it was set before: other code of the thread may have changed it (NCCL, a program's own
// CUDA).
void set_device(int index) {
  int actual = kUnknown;
  if (current == index) {
    forget(cudaGetDevice(&actual));
    if (actual == index) return;
  }
  check(cudaSetDevice(index), "cudaSetDevice");
  current = index;
}

void set_any_device() {
  for (int index = 0; current == kUnknown && index < device_count(); ++index) {
    if (devices().list[static_cast<std::size_t>(index)].is_prepared.load()) set_device(index);
  }
}

int current_device() {
  if (current == kUnknown) set_device(0);
  return current;
}

DeviceGuard::DeviceGuard(int index) : before_(current) { set_device(index); }
DeviceGuard::~DeviceGuard() {
  if (current == before_ || before_ == kUnknown) return;
  const cudaError_t status = cudaSetDevice(before_);
  if (status == cudaSuccess) current = before_;
  forget(status);
}

cudaStream_t stream() { return here().stream; }

// Whole words: atomic additions to bytes read and write the word around them.
void* allocate(std::size_t bytes) {
  if (is_capturing()) return capture.memory->allocate(bytes);
  PerDevice& device = here();
  void* data = nullptr;
  const std::size_t at_least = std::max((bytes + kWord - 1) / kWord, std::size_t{1}) * kWord;
  cudaError_t status = cudaMallocAsync(&data, at_least, device.stream);
  if (status == cudaErrorMemoryAllocation) {  // the cache may be fragmented
    static_cast<void>(cudaGetLastError());
    empty_cache(current_device());
    status = cudaMallocAsync(&data, at_least, device.stream);
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw_no_memory(device, bytes);
    }
  }
  check(status, "cudaMallocAsync");
  device.counters.add(bytes);
  return data;
}

// At the end of the process the driver and its memory may be gone already; errors cannot be reported.
void deallocate(void* data, std::size_t bytes) noexcept {
  if (is_capturing()) return capture.memory->deallocate(data);
  try {
    PerDevice& device = here();
    device.counters.remove(bytes);
    forget(cudaFreeAsync(data, device.stream));
  } catch (const DeviceError&) {
  }
}

void* allocate_unordered(std::size_t bytes) {
  static_cast<void>(stream());  // initialises the device
  void* data = nullptr;
  cudaError_t status = relaxed_malloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation && !is_capturing()) {  // releases memory cached from freed tensors
    empty_cache(current_device());
    status = relaxed_malloc(&data, bytes);
  }
  if (status == cudaErrorMemoryAllocation)
    throw DeviceError(
        fmt::format("cuda:{}: out of memory: {} bytes requested outside tensor memory; "
                    "empty_cache() before CudaGraph::capture may help",
                    current_device(), bytes));
  check(status, "cudaMalloc");
  return data;
}

AllocatorStats stats(int index) {
  const DeviceGuard guard(index);
  const PerDevice& device = here();
  return device.counters.stats(cached_bytes(device));
}

void reset_peak(int index) {
  const DeviceGuard guard(index);
  here().counters.reset_peak();
}

void empty_cache(int index) {
  const PerDevice& device = devices().list[static_cast<std::size_t>(index)];
  if (!device.is_prepared.load()) return;
  const DeviceGuard guard(index);
  check(cudaStreamSynchronize(device.stream), "cudaStreamSynchronize");
  check(cudaMemPoolTrimTo(device.pool, 0), "cudaMemPoolTrimTo");
}

void set_capture(CaptureMemory* memory) { capture = {memory, memory ? current_device() : kUnknown}; }
bool is_capturing() { return capture.memory && capture.device == current; }
void forbid_in_capture(const char* op) {
  if (is_capturing())
    throw InvalidArgument(fmt::format("{}: waits for cuda:{}, which is not allowed while a CUDA graph is captured", op,
                                      current_device()));
}

void* fault_memory() { return here().fault; }

}  // namespace lockstep::cuda
