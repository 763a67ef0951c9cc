// Random numbers: element i depends on the position and i alone, and equals the CPU's.
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/random/philox_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// Block b of the stream yields elements kEach * b and those after it.
template <class T, int kEach, class Fill>
struct Draw {
  T* out;
  std::int64_t count;
  random::Position position;
  Fill fill;
  DEVICE_ONLY void operator()(std::int64_t b) const {
    T values[kEach];
    const random::Position from = position.on_device ? *position.on_device : position;
    fill(philox(from, static_cast<std::uint64_t>(b)), values);
    for (int i = 0; i < kEach && b * kEach + i < count; ++i) out[b * kEach + i] = values[i];
  }
};

template <class T, int kEach, class Fill>
void draw(const char* op, void* out, std::int64_t count, const random::Position& position, const Fill& fill) {
  launch_elements(op, (count + kEach - 1) / kEach, Draw<T, kEach, Fill>{static_cast<T*>(out), count, position, fill});
}

template <class T>
inline constexpr int kWordsOf = 16 / sizeof(T);

template <class T>
struct Uniforms {
  T low, width;
  DEVICE_ONLY void operator()(const PhiloxBlock& block, T* values) const { uniforms_of(block, low, width, values); }
};

struct Normals {
  template <class T>
  DEVICE_ONLY void operator()(const PhiloxBlock& block, T* values) const {
    normals_of(block, values);
  }
};

struct Bits {
  DEVICE_ONLY void operator()(const PhiloxBlock& block, std::uint32_t* values) const {
    for (int i = 0; i < 4; ++i) values[i] = block.words[i];
  }
};

template <class T>
struct Mask {
  double keep;
  T kept;
  DEVICE_ONLY void operator()(const PhiloxBlock& block, T* values) const {
    for (int i = 0; i < 4; ++i) values[i] = static_cast<double>(block.words[i]) * 0x1p-32 < keep ? kept : T(0);
  }
};

}  // namespace

void uniform(void* out, std::int64_t count, DType dtype, const random::Position& position, double low, double high) {
  for_float(dtype, [&]<class T>(T) {
    draw<T, kWordsOf<T>>("uniform", out, count, position, Uniforms<T>{static_cast<T>(low), static_cast<T>(high - low)});
  });
}

void normal(void* out, std::int64_t count, DType dtype, const random::Position& position) {
  for_float(dtype, [&]<class T>(T) { draw<T, kWordsOf<T>>("normal", out, count, position, Normals{}); });
}

void random_bits(std::uint32_t* out, std::int64_t count, const random::Position& position) {
  draw<std::uint32_t, 4>("random_bits", out, count, position, Bits{});
}

void dropout_mask(void* out, std::int64_t count, DType dtype, const random::Position& position, double keep) {
  for_float(dtype, [&]<class T>(T) {
    draw<T, 4>("dropout", out, count, position, Mask<T>{keep, static_cast<T>(keep > 0 ? 1 / keep : 0)});
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
