#include "lockstep/tensor/memory/cuda_graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/memory/arena_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"

namespace lockstep {
namespace {

// Values that change from replay to replay: the host's bytes and the device's copy, which one launch updates if they
// differ.
struct Page {
  using Bytes = std::array<std::byte, kMostWords * sizeof(std::uint64_t)>;
  alignas(16) Bytes host;
  std::size_t used = 0;
  void* device = nullptr;
  std::optional<Bytes> written;  // bytes on the device, from the first launch on
};

struct DeviceScalars {
  void* host;
  Callback<void(void*)> next;
};

struct Freed {
  void* data;
  std::size_t bytes;
  Device device;
  bool unordered;  // allocated by Accelerator::allocate_unordered
};

}  // namespace

struct RecordedStep {
  std::shared_ptr<Arena> arena;
  // Memory of the pages. They are written before the work starts; in the arena they would share memory that the step
  // frees.
  std::optional<Arena> pages_memory;
  std::vector<std::unique_ptr<Page>> pages;
  std::vector<DeviceScalars> scalars;
  std::unique_ptr<RecordedWork> work;  // destroyed first
};

namespace {

struct Capture;
constinit std::mutex capture_mutex;                  // guards changes of `under_way` and its list
constinit std::atomic<Capture*> under_way{nullptr};  // at most one in a process
constinit thread_local Capture* own = nullptr;       // the capture of this thread

// An active capture. Memory that is freed meanwhile is freed at its end.
struct Capture {
  Capture(Device device, Accelerator& accelerator, RecordedStep& recorded)
      : device(device), accelerator(accelerator), recorded(recorded) {
    const std::lock_guard lock(capture_mutex);
    LOCKSTEP_CHECK(!under_way.load(),
                   "CudaGraph: another capture is active in this process, on {}; captures cannot overlap",
                   under_way.load()->device.to_string());
    under_way.store(this);
    own = this;
  }
  ~Capture() {
    std::unique_lock lock(capture_mutex);
    under_way.store(nullptr);
    own = nullptr;
    lock.unlock();
    for (const Freed& block : freed) {
      if (block.unordered)
        accelerator.deallocate_unordered(block.data, block.device.index());
      else
        accelerator.deallocate(block.data, block.bytes, block.device.index());
    }
  }

  const Device device;
  Accelerator& accelerator;
  RecordedStep& recorded;
  std::vector<Freed> freed;  // memory of older tensors and graphs, guarded by capture_mutex
};

// Runs the step and returns how much memory it needs beyond what was allocated before.
std::size_t warm_up(Accelerator& accelerator, Device device, FunctionRef<void()> step) {
  accelerator.synchronize(device.index());  // reports earlier errors before the step runs
  const std::int64_t before = accelerator.stats(device.index()).allocated_bytes;
  accelerator.reset_peak(device.index());
  step();
  accelerator.synchronize(device.index());
  return static_cast<std::size_t>(std::max<std::int64_t>(accelerator.stats(device.index()).peak_bytes - before, 0));
}

std::unique_ptr<RecordedWork> record(Accelerator& accelerator, Device device, RecordedStep& recorded,
                                     FunctionRef<void()> step) {
  Capture capture(device, accelerator, recorded);
  accelerator.begin_capture(device.index(), *recorded.arena);
  try {
    step();
  } catch (...) {
    try {
      static_cast<void>(accelerator.end_capture(device.index()));
    } catch (const Error&) {  // the step's exception is the cause
    }
    throw;
  }
  return accelerator.end_capture(device.index());
}

void start(RecordedStep& recorded, Device device) {
  for (const auto& page : recorded.pages) {
    if (page->written && std::memcmp(page->written->data(), page->host.data(), page->used) == 0) continue;
    kernels(device).write_words(page->device, page->host.data(),
                                static_cast<std::int64_t>(page->used / sizeof(std::uint64_t)));
    page->written = page->host;
  }
  recorded.work->launch();
}

}  // namespace

bool capture::is_active(Device device) { return own && own->device == device; }

Ref<Storage> capture::allocate(std::size_t bytes, Device device) {
  if (!under_way.load(std::memory_order_acquire)) return {};
  if (!is_active(device)) {
    const std::lock_guard lock(capture_mutex);
    const Capture* const capture = under_way.load();
    if (!capture || capture->device != device) return {};
    throw DeviceError(fmt::format("{}: cannot allocate: another thread is capturing a CUDA graph on this device",
                                  device.to_string()));
  }
  const std::shared_ptr<Arena> arena = own->recorded.arena;
  void* const data = arena->allocate(bytes);
  return Storage::wrap(data, bytes, device,
                       std::shared_ptr<void>(data, [arena](void* memory) { arena->deallocate(memory); }));
}

bool capture::defer_free(void* data, std::size_t bytes, Device device, bool unordered) noexcept {
  if (!under_way.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(capture_mutex);
  Capture* const capture = under_way.load();
  if (!capture || (!unordered && capture->device != device)) return false;
  capture->freed.push_back({.data = data, .bytes = bytes, .device = device, .unordered = unordered});
  return true;
}

void capture::forbid(const char* op, Device device) {
  LOCKSTEP_CHECK(!is_active(device),
                 "{}: waits for {}, which is not allowed while a CUDA graph is captured; call it before or after "
                 "CudaGraph::capture and replay",
                 op, device.to_string());
}

const void* capture::place(const void* value, std::size_t bytes, Callback<void(void*)> next) {
  RecordedStep& recorded = own->recorded;
  const std::size_t room = (bytes + 15) / 16 * 16;
  if (recorded.pages.empty() || recorded.pages.back()->used + room > recorded.pages.back()->host.size()) {
    auto page = std::make_unique<Page>();
    if (!recorded.pages_memory) recorded.pages_memory.emplace(own->accelerator, own->device.index(), page->host.size());
    page->device = recorded.pages_memory->allocate(page->host.size());
    recorded.pages.push_back(std::move(page));
  }
  Page& page = *recorded.pages.back();
  void* const host = page.host.data() + page.used;
  std::memcpy(host, value, bytes);
  recorded.scalars.push_back({host, std::move(next)});
  const void* const there = static_cast<const std::byte*>(page.device) + page.used;
  page.used += room;
  return there;
}

CudaGraph::CudaGraph(Device device) : device_(device) {
  LOCKSTEP_CHECK(device.is_cuda(), "CudaGraph: {} is not a cuda device", device.to_string());
  accelerator(device);  // throws if there is no such device
}

CudaGraph::~CudaGraph() = default;

void CudaGraph::capture(FunctionRef<void()> step, const CaptureOptions& options) {
  LOCKSTEP_CHECK(!own, "CudaGraph: a capture inside another one, of {}; captures cannot be nested",
                 own->device.to_string());
  recorded_.reset();
  Accelerator& device = accelerator(device_);
  auto recorded = std::make_unique<RecordedStep>();
  const std::size_t expected = options.warm_up ? warm_up(device, device_, step) : 0;
  recorded->arena = std::make_shared<Arena>(device, device_.index(), expected);
  recorded->work = record(device, device_, *recorded, step);
  start(*recorded, device_);
  recorded_ = std::move(recorded);
}

void CudaGraph::replay() {
  LOCKSTEP_CHECK(recorded_, "CudaGraph: nothing was captured; call capture() before replay()");
  for (const DeviceScalars& each : recorded_->scalars) each.next(each.host);
  start(*recorded_, device_);
}

std::int64_t CudaGraph::memory_bytes() const {
  if (!recorded_) return 0;
  const std::size_t pages = recorded_->pages_memory ? recorded_->pages_memory->bytes() : 0;
  return static_cast<std::int64_t>(recorded_->arena->bytes() + pages);
}

}  // namespace lockstep
