#include "tests/cuda/host_accelerator.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

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

ls::cuda::Fault fault{};

// Under AddressSanitizer nobody but the kernels, which are compiled without it, may touch the device's memory.
class HostAccelerator final : public ls::Accelerator {
 public:
  int device_count() override { return 2; }
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
    const bool opens_target = to_device.is_cuda(), opens_source = from_device.is_cuda();
    if (opens_target) ASAN_UNPOISON_MEMORY_REGION(to, bytes);
    if (opens_source) ASAN_UNPOISON_MEMORY_REGION(from, bytes);
    std::memcpy(to, from, bytes);
    if (opens_target) ASAN_POISON_MEMORY_REGION(to, bytes);
    if (opens_source) ASAN_POISON_MEMORY_REGION(from, bytes);
    if (to_device.is_cpu()) synchronize(from_device.index());
  }
  void synchronize(int index) override {
    const ls::cuda::Fault found = fault;
    fault.kind = ls::cuda::Fault::kNone;
    if (found.kind != ls::cuda::Fault::kNone) throw ls::InvalidArgument(describe(found, index));
  }

 private:
  struct Books {
    std::atomic<std::int64_t> allocated{0}, peak{0}, allocations{0};
  };
  Books books_[2];
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
int TestDevices::count() const { return ls::device_count(ls::DeviceType::kCuda); }
