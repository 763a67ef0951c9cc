// Random kernels: element i depends on the position and i alone.
#include "lockstep/tensor/kernels/level_internal.h"

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/random/philox_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// Calls fill(block, out + i, left) for every block of `each` elements; the last block has only `left` of them.
template <class T, class F>
void for_blocks(T* out, std::int64_t count, int each, const random::Position& position, F fill) {
  for_units((count + each - 1) / each, each, [=](std::int64_t b) {
    const std::int64_t left = count - b * each;
    fill(philox(position, static_cast<std::uint64_t>(b)), out + b * each, left < each ? left : each);
  });
}

}  // namespace

void uniform(void* out, std::int64_t count, DType dtype, const random::Position& position, double low, double high) {
  for_float(dtype, [&]<class T>(T) {
    constexpr int kEach = 16 / sizeof(T);
    const T start = static_cast<T>(low), width = static_cast<T>(high - low);
    for_blocks(as<T>(out), count, kEach, position, [=](const PhiloxBlock& block, T* to, std::int64_t left) {
      T values[kEach];
      uniforms_of(block, start, width, values);
      for (std::int64_t i = 0; i < left; ++i) to[i] = values[i];
    });
  });
}

void normal(void* out, std::int64_t count, DType dtype, const random::Position& position) {
  for_float(dtype, [&]<class T>(T) {
    constexpr int kEach = 16 / sizeof(T);
    for_blocks(as<T>(out), count, kEach, position, [](const PhiloxBlock& block, T* to, std::int64_t left) {
      T values[kEach];
      normals_of(block, values);
      for (std::int64_t i = 0; i < left; ++i) to[i] = values[i];
    });
  });
}

void random_bits(std::uint32_t* out, std::int64_t count, const random::Position& position) {
  for_blocks(out, count, 4, position, [](const PhiloxBlock& block, std::uint32_t* to, std::int64_t left) {
    for (std::int64_t i = 0; i < left; ++i) to[i] = block.words[i];
  });
}

void dropout_mask(void* out, std::int64_t count, DType dtype, const random::Position& position, double keep) {
  for_float(dtype, [&]<class T>(T) {
    const T kept = static_cast<T>(keep > 0 ? 1 / keep : 0);
    for_blocks(as<T>(out), count, 4, position, [=](const PhiloxBlock& block, T* to, std::int64_t left) {
      for (std::int64_t i = 0; i < left; ++i)
        to[i] = static_cast<double>(block.words[i]) * 0x1p-32 < keep ? kept : T(0);
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
