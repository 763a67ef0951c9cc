// The launches of launch_internal.h, which includes this file, as loops of the calling thread: run immediately or, while
// a graph is captured, in each replay.
#pragma once

#include <functional>

namespace lockstep::LOCKSTEP_KERNELS {

// The state of the device for which these kernels run: defined in tests/cuda/host_accelerator.cpp.
bool is_recording();
void record(std::function<void()> launch);
void* allocate_scratch(std::size_t bytes);
void deallocate_scratch(void* data) noexcept;

template <class F>
void launch_elements(const char*, std::int64_t count, const F& f) {
  const auto run = [count, f] {
    for (std::int64_t i = 0; i < count; ++i) f(i);
  };
  is_recording() ? record(run) : run();
}

template <class F>
void launch_blocks(const char*, std::int64_t blocks, const F& f) {
  const auto run = [blocks, f] {
    for (std::int64_t i = 0; i < blocks; ++i) f(Block(i));
  };
  is_recording() ? record(run) : run();
}

inline Scratch::Scratch(std::int64_t bytes)
    : bytes_(static_cast<std::size_t>(bytes)), data_(bytes > 0 ? allocate_scratch(bytes_) : nullptr) {}
inline Scratch::~Scratch() { deallocate_scratch(data_); }
inline void Scratch::read(void* to, std::size_t bytes) const { std::memcpy(to, data_, bytes); }

}  // namespace lockstep::LOCKSTEP_KERNELS
