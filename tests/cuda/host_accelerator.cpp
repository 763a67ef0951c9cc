#include "tests/cuda/host_accelerator.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"

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

using Launches = std::vector<std::function<void()>>;
Launches* recorder = nullptr;  // of the current capture
ls::CaptureMemory* capture_memory = nullptr;

struct Recorded final : ls::RecordedWork {
  explicit Recorded(Launches launches) : launches(std::move(launches)) {}
  void launch() override {
    for (const auto& launch : launches) launch();
  }
  Launches launches;
};

struct Moment final : ls::DeviceEvent {
  using Clock = std::chrono::steady_clock;
  double seconds_since(const ls::DeviceEvent& earlier) const override {
    return std::chrono::duration<double>(at - static_cast<const Moment&>(earlier).at).count();
  }
  Clock::time_point at = Clock::now();
};

// Under AddressSanitizer only the kernels, which are compiled without it, may access the device's memory.
class HostAccelerator final : public ls::Accelerator {
 public:
  int device_count() override { return kDevices; }
  std::string why_none() override { return ""; }
  const ls::KernelTable& kernels(int) override { return ls::cuda::host::kTable; }

  void* allocate(std::size_t bytes, int index) override {
    if (recorder) throw ls::DeviceError("a tensor was allocated outside of the graph that is being captured");
    void* const data = fresh(bytes);
    Books& of = books_[index];
    ++of.allocations;
    of.allocated += static_cast<std::int64_t>(bytes);
    of.peak = std::max(of.peak.load(), of.allocated.load());
    return data;
  }
  void deallocate(void* data, std::size_t bytes, int index) noexcept override {
    if (recorder) std::abort();  // CUDA would end the capture
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
    if (recorder) {
      if (to_device != from_device) throw ls::DeviceError("a copy between devices was started while capturing");
      recorder->push_back([=, this] { move(to, to_device, from, from_device, bytes); });
      return;
    }
    move(to, to_device, from, from_device, bytes);
    if (to_device.is_cpu()) synchronize(from_device.index());
  }
  void synchronize(int index) override {
    if (recorder) throw ls::DeviceError("the device was waited for while capturing");
    const std::lock_guard lock(mutex_);
    const ls::cuda::Fault found = fault;
    fault.kind = ls::cuda::Fault::kNone;
    if (found.kind != ls::cuda::Fault::kNone) throw ls::InvalidArgument(describe(found, index));
  }
  std::unique_ptr<ls::DeviceEvent> record_event(int) override { return std::make_unique<Moment>(); }

  void begin_capture(int, ls::CaptureMemory& memory) override {
    recorder = &launches_;
    capture_memory = &memory;
  }
  std::unique_ptr<ls::RecordedWork> end_capture(int) override {
    recorder = nullptr;
    capture_memory = nullptr;
    return std::make_unique<Recorded>(std::exchange(launches_, {}));
  }
  void* allocate_unordered(std::size_t bytes, int) override { return fresh(bytes); }
  void deallocate_unordered(void* data, int) noexcept override {
    if (recorder) std::abort();  // as above
    std::free(data);
  }

  bool pin_host(void*, std::size_t) noexcept override {
    ++pinned_;
    return true;
  }
  void unpin_host(void*) noexcept override { --pinned_; }
  void* compute_stream(int) override { return nullptr; }
  int pinned() const { return pinned_; }

 private:
  static void* fresh(std::size_t bytes) {
    void* const data = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
    std::memset(data, 0xff, bytes);  // NaN
    ASAN_POISON_MEMORY_REGION(data, bytes);
    return data;
  }
  void move(void* to, ls::Device to_device, const void* from, ls::Device from_device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool opens_target = to_device.is_cuda(), opens_source = from_device.is_cuda();
    if (opens_target) ASAN_UNPOISON_MEMORY_REGION(to, bytes);
    if (opens_source) ASAN_UNPOISON_MEMORY_REGION(from, bytes);
    std::memcpy(to, from, bytes);
    if (opens_target) ASAN_POISON_MEMORY_REGION(to, bytes);
    if (opens_source) ASAN_POISON_MEMORY_REGION(from, bytes);
  }

  struct Books {
    std::atomic<std::int64_t> allocated{0}, peak{0}, allocations{0};
  };
  Books books_[kDevices];
  std::atomic<int> pinned_{0};
  std::mutex mutex_;  // for copies, which open the memory that they copy
  Launches launches_;
};

bool has_real_devices() {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_CUDA");
  if (wanted && std::string(wanted) == "host") return false;
  return ls::device_count(ls::DeviceType::kCuda) > 0;
}

}  // namespace

namespace lockstep::cuda::host {
Fault* fault_record() { return &fault; }
bool is_recording() { return recorder != nullptr; }
void record(std::function<void()> launch) { recorder->push_back(std::move(launch)); }
void forbid_in_capture(const char* op) {
  if (recorder) throw InvalidArgument(std::string(op) + ": waits for the device, which is being captured");
}
void* allocate_scratch(std::size_t bytes) {
  return capture_memory ? capture_memory->allocate(bytes) : ::operator new(bytes);
}
void deallocate_scratch(void* data) noexcept {
  capture_memory ? capture_memory->deallocate(data) : ::operator delete(data);
}
}  // namespace lockstep::cuda::host

struct TestDevices::State {
  bool are_real = has_real_devices();
  HostAccelerator host;
};

TestDevices::TestDevices() : state_(std::make_unique<State>()) {
  if (!state_->are_real) ls::set_accelerator(&state_->host);
}
TestDevices::~TestDevices() { ls::set_accelerator(nullptr); }
bool TestDevices::are_real() const { return state_->are_real; }
bool TestDevices::are_gpus() const { return are_real() && !std::getenv("LOCKSTEP_TEST_SIMULATED"); }
int TestDevices::pinned() const { return state_->host.pinned(); }
ls::Device TestDevices::operator[](int index) const { return {ls::DeviceType::kCuda, index % count()}; }
int TestDevices::count() const { return ls::device_count(ls::DeviceType::kCuda); }
