// The launches of launch.h as loops of the calling thread.
#pragma once

#include <new>

#include "lockstep/tensor/cuda/launch.h"

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

template <class F>
void launch_elements(const char*, std::int64_t count, const F& f) {
  for (std::int64_t i = 0; i < count; ++i) f(i);
}

template <class F>
void launch_blocks(const char*, std::int64_t blocks, const F& f) {
  for (std::int64_t i = 0; i < blocks; ++i) f(Block(i));
}

inline Scratch::Scratch(std::int64_t bytes)
    : bytes_(static_cast<std::size_t>(bytes)), data_(bytes > 0 ? ::operator new(bytes_) : nullptr) {}
inline Scratch::~Scratch() { ::operator delete(data_); }
inline void Scratch::read(void* to, std::size_t bytes) const { std::memcpy(to, data_, bytes); }

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
