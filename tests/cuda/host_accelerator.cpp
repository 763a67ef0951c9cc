#include "tests/cuda/host_accelerator.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "lockstep/tensor/accelerator_internal.h"
#include "lockstep/tensor/cuda/launch.h"

#if LOCKSTEP_HAVE_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) static_cast<void>(data)
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) static_cast<void>(data)
#endif

namespace ls = lockstep;

namespace {

constexpr int kDevices = 4;

ls::cuda::Fault fault{};

// Under AddressSanitizer nobody but the kernels, which are compiled without it, may touch the device's memory.
class HostAccelerator final : public ls::Accelerator {
 public:
  int device_count() override { return kDevices; }
  std::string why_none() override { return ""; }
  const ls::KernelTable& kernels(int) override { return ls::cuda::host::kTable; }

  void* allocate(std::size_t bytes, int index) override {
    void* const data = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
    std::memset(data, 0xff, bytes);  // NaN
    ASAN_POISON_MEMORY_REGION(data, bytes);
    Books& of = books_[index];
    ++of.allocations;
    of.allocated += static_cast<std::int64_t>(bytes);
    of.peak = std::max(of.peak.load(), of.allocated.load());
    return data;
  }
  void deallocate(void* data, std::size_t bytes, int index) noexcept override {
    ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    books_[index].allocated -= static_cast<std::int64_t>(bytes);
    std::free(data);
  }
  ls::AllocatorStats stats(int index) override {
    const Books& of = books_[index];
    return {.allocated_bytes = of.allocated, .peak_bytes = of.peak, .allocations = of.allocations};
  }
  void reset_peak(int index) override { books_[index].peak = books_[index].allocated.load(); }
  void empty_cache() override {}

  void copy(void* to, ls::Device to_device, const void* from, ls::Device from_device, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const bool opens_target = to_device.is_cuda(), opens_source = from_device.is_cuda();
    if (opens_target) ASAN_UNPOISON_MEMORY_REGION(to, bytes);
    if (opens_source) ASAN_UNPOISON_MEMORY_REGION(from, bytes);
    std::memcpy(to, from, bytes);
    if (opens_target) ASAN_POISON_MEMORY_REGION(to, bytes);
    if (opens_source) ASAN_POISON_MEMORY_REGION(from, bytes);
    if (to_device.is_cpu()) tell_fault(from_device.index());
  }
  void synchronize(int index) override {
    const std::lock_guard lock(mutex_);
    tell_fault(index);
  }
  bool pin_host(void*, std::size_t) noexcept override {
    ++pinned_;
    return true;
  }
  void unpin_host(void*) noexcept override { --pinned_; }
  void* compute_stream(int) override { return nullptr; }
  int pinned() const { return pinned_; }

 private:
  void tell_fault(int index) {
    const ls::cuda::Fault found = fault;
    fault.kind = ls::cuda::Fault::kNone;
    if (found.kind != ls::cuda::Fault::kNone) throw ls::InvalidArgument(describe(found, index));
  }

  struct Books {
    std::atomic<std::int64_t> allocated{0}, peak{0}, allocations{0};
  };
  Books books_[kDevices];
  std::atomic<int> pinned_{0};
  std::mutex mutex_;  // of copies, which open the memory that they copy
};

bool has_real_devices() {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_CUDA");
  if (wanted && std::string(wanted) == "host") return false;
  return ls::device_count(ls::DeviceType::kCuda) > 0;
}

}  // namespace

namespace lockstep::inline LOCKSTEP_ABI::cuda::host {
Fault* fault_record() { return &fault; }
}  // namespace lockstep::inline LOCKSTEP_ABI::cuda::host

struct TestDevices::State {
  bool are_real = has_real_devices();
  HostAccelerator host;
};

TestDevices::TestDevices() : state_(std::make_unique<State>()) {
  if (!state_->are_real) ls::set_accelerator(&state_->host);
}
TestDevices::~TestDevices() { ls::set_accelerator(nullptr); }
bool TestDevices::are_real() const { return state_->are_real; }
int TestDevices::pinned() const { return state_->host.pinned(); }
ls::Device TestDevices::operator[](int index) const { return {ls::DeviceType::kCuda, index % count()}; }
int TestDevices::count() const { return ls::device_count(ls::DeviceType::kCuda); }
