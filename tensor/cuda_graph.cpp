#include "lockstep/tensor/cuda_graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/tensor/arena_internal.h"
#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/kernels_internal.h"

namespace lockstep {
namespace {

// Numbers that change from replay to replay: as the host has them, and their place in the device's memory, which one launch
// fills where it holds others.
struct Page {
  using Bytes = std::array<std::byte, kMostWords * sizeof(std::uint64_t)>;
  alignas(16) Bytes host;
  std::size_t used = 0;
  void* device = nullptr;
  Bytes written;  // what the device has; nothing before the first launch
  bool is_written = false;
};

struct Moving {
  void* host;
  Callback<void(void*)> next;
};

struct Freed {
  void* data;
  std::size_t bytes;
  Device device;
  bool apart;  // of Accelerator::allocate_apart
};

}  // namespace

struct RecordedStep {
  std::shared_ptr<Arena> arena;
  // Of the pages, which are written in front of the work: in the arena they would share memory with what the step has freed.
  std::optional<Arena> pages_memory;
  std::vector<std::unique_ptr<Page>> pages;
  std::vector<Moving> moving;
  std::unique_ptr<RecordedWork> work;  // goes first
};

namespace {

// A capture under way.
struct Capture {
  Device device;
  Accelerator& accelerator;
  RecordedStep& recorded;
  std::vector<Freed> freed = {};  // of older tensors and graphs, under the mutex
};

constinit std::mutex capture_mutex;                  // of `under_way` where it changes, and of its list
constinit std::atomic<Capture*> under_way{nullptr};  // one at a time in a process
constinit thread_local Capture* own = nullptr;       // the same, for the thread that captures

// Makes a capture known while it lives, and frees afterwards what waited.
class Announced {
 public:
  explicit Announced(Capture& capture) : capture_(capture) {
    const std::lock_guard lock(capture_mutex);
    LOCKSTEP_CHECK(!under_way.load(), "CudaGraph: another capture is under way in this process, on {}",
                   under_way.load()->device.to_string());
    under_way.store(&capture);
    own = &capture;
  }
  ~Announced() {
    std::unique_lock lock(capture_mutex);
    under_way.store(nullptr);
    own = nullptr;
    lock.unlock();
    for (const Freed& block : capture_.freed) {
      if (block.apart)
        capture_.accelerator.deallocate_apart(block.data, block.device.index());
      else
        capture_.accelerator.deallocate(block.data, block.bytes, block.device.index());
    }
  }
  Announced(const Announced&) = delete;
  Announced& operator=(const Announced&) = delete;

 private:
  Capture& capture_;
};

// How much more memory than before the step needs at once.
std::size_t warm_up(Accelerator& accelerator, Device device, FunctionRef<void()> step) {
  accelerator.synchronize(device.index());  // what was wrong before is told as such
  const std::int64_t before = accelerator.stats(device.index()).allocated_bytes;
  accelerator.reset_peak(device.index());
  step();
  accelerator.synchronize(device.index());
  return static_cast<std::size_t>(std::max<std::int64_t>(accelerator.stats(device.index()).peak_bytes - before, 0));
}

std::unique_ptr<RecordedWork> record(Capture& capture, FunctionRef<void()> step) {
  const int index = capture.device.index();
  const Announced announced(capture);
  capture.accelerator.begin_capture(index, *capture.recorded.arena);
  try {
    step();
  } catch (...) {
    try {
      static_cast<void>(capture.accelerator.end_capture(index));
    } catch (const Error&) {  // what the step threw is the reason
    }
    throw;
  }
  return capture.accelerator.end_capture(index);
}

void start(RecordedStep& recorded, Device device) {
  for (const auto& page : recorded.pages) {
    if (page->is_written && std::memcmp(page->written.data(), page->host.data(), page->used) == 0) continue;
    kernels(device).write_words(page->device, page->host.data(),
                                static_cast<std::int64_t>(page->used / sizeof(std::uint64_t)));
    page->written = page->host;
    page->is_written = true;
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
    throw DeviceError(fmt::format("{}: another thread is capturing a CUDA graph on it", device.to_string()));
  }
  const std::shared_ptr<Arena> arena = own->recorded.arena;
  void* const data = arena->allocate(bytes);
  return Storage::wrap(data, bytes, device,
                       std::shared_ptr<void>(data, [arena](void* memory) { arena->deallocate(memory); }));
}

bool capture::defer_free(void* data, std::size_t bytes, Device device) noexcept {
  if (!under_way.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(capture_mutex);
  Capture* const capture = under_way.load();
  if (!capture || capture->device != device) return false;
  capture->freed.push_back({.data = data, .bytes = bytes, .device = device, .apart = false});
  return true;
}

bool capture::defer_free_apart(void* data, Device device) noexcept {
  if (!under_way.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(capture_mutex);
  Capture* const capture = under_way.load();
  if (!capture) return false;
  capture->freed.push_back({.data = data, .bytes = 0, .device = device, .apart = true});
  return true;
}

void capture::forbid(const char* op, Device device) {
  LOCKSTEP_CHECK(!is_active(device),
                 "{}: waits for {}, which a CUDA graph that is being captured cannot do; do it before or after "
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
  recorded.moving.push_back({host, std::move(next)});
  const void* const there = static_cast<const std::byte*>(page.device) + page.used;
  page.used += room;
  return there;
}

CudaGraph::CudaGraph(Device device) : device_(device) {
  LOCKSTEP_CHECK(device.is_cuda(), "CudaGraph: {} is not a cuda device", device.to_string());
  accelerator(device);  // throws where there is none
}

CudaGraph::~CudaGraph() = default;

void CudaGraph::capture(FunctionRef<void()> step, const CaptureOptions& options) {
  LOCKSTEP_CHECK(!own, "CudaGraph: a capture inside another one, of {}", own->device.to_string());
  recorded_.reset();
  Accelerator& device = accelerator(device_);
  auto recorded = std::make_unique<RecordedStep>();
  const std::size_t expected = options.warm_up ? warm_up(device, device_, step) : 0;
  recorded->arena = std::make_shared<Arena>(device, device_.index(), expected);
  Capture capture{.device = device_, .accelerator = device, .recorded = *recorded};
  recorded->work = record(capture, step);
  start(*recorded, device_);
  recorded_ = std::move(recorded);
}

void CudaGraph::replay() {
  LOCKSTEP_CHECK(recorded_, "CudaGraph: nothing was captured; call capture() before replay()");
  for (const Moving& moving : recorded_->moving) moving.next(moving.host);
  start(*recorded_, device_);
}

std::int64_t CudaGraph::memory_bytes() const {
  if (!recorded_) return 0;
  const std::size_t pages = recorded_->pages_memory ? recorded_->pages_memory->bytes() : 0;
  return static_cast<std::int64_t>(recorded_->arena->bytes() + pages);
}

}  // namespace lockstep
