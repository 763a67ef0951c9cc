// Elementwise kernels with several operands, casts and fills. Plain loops: the compiler vectorises them, and without
// contraction a vectorised sum or product has the bits of the scalar one.
#include "lockstep/tensor/kernels/elementwise_internal.h"

#include <cstring>

#include "lockstep/tensor/cpu/loops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// out = f(a, b), or f(in), for every element.
template <class Out, class T, class F>
void binary(const Loop<3>& loop, F f) {
  run_loop<Out, T, T>(loop, [f](std::int64_t count, Out* out, const T* a, const T* b) {
    if constexpr (std::is_same_v<T, float> && requires { F::is_usual(*a, *b); }) {
      for_usual(
          count, out, [=](std::int64_t i) { return F::is_usual(a[i], b[i]); },
          [=](std::int64_t i) { return F::usual(a[i], b[i]); }, [=](std::int64_t i) { return f(a[i], b[i]); });
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
    }
  });
}
template <class Out, class In, class F>
void unary(const Loop<2>& loop, F f) {
  run_loop<Out, In>(loop, [f](std::int64_t count, Out* out, const In* in) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = f(in[i]);
  });
}

// Copies a transposed matrix in square tiles, which read and write whole cache lines. Returns false, and copies nothing,
// unless the output's last dimension is contiguous and the input's last but one, and both are at least a tile long.
template <class T>
bool copy_transposed(const Loop<2>& loop) {
  constexpr std::int64_t kSide = 32;
  const int of_rows = loop.dims - 2, of_columns = loop.dims - 1;
  if (of_rows < 0 || loop.strides[0][of_columns] != 1 || loop.strides[1][of_rows] != 1) return false;
  const std::int64_t rows = loop.shape[of_rows], columns = loop.shape[of_columns];
  const std::int64_t out_row = loop.strides[0][of_rows], in_column = loop.strides[1][of_columns];
  if (rows < kSide || columns < kSide) return false;
  Loop<2> outer = loop;
  outer.dims = of_rows;
  const std::int64_t bands = (rows + kSide - 1) / kSide;
  for_units(loop.numel / (rows * columns) * bands, kSide * columns, [=](std::int64_t unit) {
    std::int64_t offsets[2] = {};
    add_offsets(outer, unit / bands, offsets);
    const std::int64_t first = unit % bands * kSide, height = rows - first < kSide ? rows - first : kSide;
    T* const out = static_cast<T*>(loop.data[0]) + offsets[0] + first * out_row;
    const T* const in = static_cast<const T*>(loop.data[1]) + offsets[1] + first;
    for (std::int64_t at = 0; at < columns; at += kSide) {
      const std::int64_t width = columns - at < kSide ? columns - at : kSide;
      T tile[kSide][kSide];
      for (std::int64_t j = 0; j < width; ++j) {
        const T* const column = in + (at + j) * in_column;
        for (std::int64_t i = 0; i < height; ++i) tile[i][j] = column[i];
      }
      for (std::int64_t i = 0; i < height; ++i)
        std::memcpy(out + i * out_row + at, tile[i], static_cast<std::size_t>(width) * sizeof(T));
    }
  });
  return true;
}

}  // namespace

void write_words(void* to, const void* from, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(std::uint64_t));
}

void fill(const Loop<1>& loop, DType dtype, const Scalar& value) {
  const auto run = [&]<class T>(T number) {
    run_loop<T>(loop, [number](std::int64_t count, T* out) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = number;
    });
  };
  if (dtype == kFloat16) return run(to_half(static_cast<float>(value.to_double())));
  if (dtype == kBFloat16) return run(to_bfloat16(static_cast<float>(value.to_double())));
  for_number(dtype, [&]<class T>(T) {
    run(dtype == kBool ? static_cast<T>(value.to_double() != 0) : scalar_value<T>(value));
  });
}

void add(const Loop<3>& loop, DType dtype, const Scalar& alpha) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, AddScaled<T>{scalar_value<T>(alpha)}); });
}
void mul(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Multiply{}); });
}
void div(const Loop<3>& loop, DType dtype) {
  for_float(dtype, [&]<class T>(T) { binary<T, T>(loop, Divide{}); });
}
void pow(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Power{}); });
}
void maximum(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Maximum{}); });
}
void minimum(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Minimum{}); });
}

void compare(const Loop<3>& loop, DType dtype, raw::Compare relation) {
  for_number(dtype, [&]<class T>(T) { with_relation(relation, [&](auto f) { binary<std::uint8_t, T>(loop, f); }); });
}

// A functor that does not take T is not compiled for it: the wrappers never ask for it.
void step_function(const Loop<2>& loop, DType dtype, raw::Step function) {
  for_number(dtype, [&]<class T>(T) {
    with_step(function, [&](auto f) {
      if constexpr (std::is_invocable_v<decltype(f), T>) unary<T, T>(loop, f);
    });
  });
}
void binary_op(const Loop<3>& loop, DType dtype, raw::BinaryOp function) {
  for_number(dtype, [&]<class T>(T) {
    with_binary_op(function, [&](auto f) {
      if constexpr (std::is_invocable_v<decltype(f), T, T>) binary<T, T>(loop, f);
    });
  });
}

void where(const Loop<4>& loop, DType dtype) {
  for_size(dtype, [&]<class T>(T) {
    run_loop<T, std::uint8_t, T, T>(loop,
                                    [](std::int64_t count, T* out, const std::uint8_t* c, const T* a, const T* b) {
                                      for (std::int64_t i = 0; i < count; ++i) out[i] = Where{}(c[i], a[i], b[i]);
                                    });
  });
}

void cast(const Loop<2>& loop, DType from, DType to) {
  if (from == to) {
    for_size(from, [&]<class T>(T) {
      if (!copy_transposed<T>(loop)) unary<T, T>(loop, Convert<T, T>{});
    });
    return;
  }
  for_any(from,
          [&]<class From>(From) { for_any(to, [&]<class To>(To) { unary<To, From>(loop, Convert<From, To>{}); }); });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
