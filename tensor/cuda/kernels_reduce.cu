// Sums, maxima and minima.
#include <type_traits>

#include "lockstep/tensor/cuda/reduce_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// The sum of integers is i64, which wraps around.
template <class T>
struct SumOf {
  using Sum = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  using Out = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
  const T* in;
  Out* out;
  double scale;
  DEVICE_ONLY Sum start() const { return 0; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t) const { sum += static_cast<Sum>(in[at]); }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a + b; }
  DEVICE_ONLY void finish(std::int64_t output, Sum sum) const {
    if constexpr (std::is_integral_v<T>)
      out[output] = static_cast<Out>(sum);
    else
      out[output] = static_cast<T>(static_cast<double>(sum) * scale);
  }
};

template <class T>
struct SumOfSquares {
  using Sum = T;
  const T* in;
  const T* center;  // center of each output, or null
  T* out;
  double scale;
  DEVICE_ONLY Sum start() const { return 0; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t output, std::int64_t) const {
    const T distance = in[at] - (center ? center[output] : T(0));
    sum += distance * distance;
  }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a + b; }
  DEVICE_ONLY void finish(std::int64_t output, Sum sum) const {
    out[output] = static_cast<T>(static_cast<double>(sum) * scale);
  }
};

template <class T>
struct ProductOf {
  using Sum = T;
  const T* in;
  T* out;
  DEVICE_ONLY Sum start() const { return 1; }
  DEVICE_ONLY void add(Sum& product, std::int64_t at, std::int64_t, std::int64_t) const { product *= in[at]; }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a * b; }
  DEVICE_ONLY void finish(std::int64_t output, Sum product) const { out[output] = product; }
};

struct Greatest {
  template <class T>
  DEVICE_ONLY static bool beats(T a, T b) {
    return a > b;
  }
};
struct Least {
  template <class T>
  DEVICE_ONLY static bool beats(T a, T b) {
    return a < b;
  }
};

// The extreme and its first index (-1: no element yet). NaN is more extreme than any number.
template <class T, class Order>
struct ExtremeOf {
  struct Sum {
    T value;
    std::int64_t place;
  };
  const T* in;
  T* value_out;             // values, or null
  std::int64_t* place_out;  // indices, or null
  DEVICE_ONLY Sum start() const { return {T(0), -1}; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t r) const { sum = join(sum, {in[at], r}); }
  DEVICE_ONLY Sum join(const Sum& a, const Sum& b) const {
    if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && Order::beats(a.value, b.value)) return a;
    if (!a_nan && Order::beats(b.value, a.value)) return b;
    return a.place < b.place ? a : b;
  }
  DEVICE_ONLY void finish(std::int64_t output, const Sum& sum) const {
    if (value_out)
      value_out[output] = sum.value;
    else
      place_out[output] = sum.place;
  }
};

template <class Order>
void extreme(const char* op, const void* in, void* values, std::int64_t* places, const Rows& rows, DType dtype) {
  for_number(dtype, [&]<class T>(T) {
    launch_reduce(op, rows, ExtremeOf<T, Order>{static_cast<const T*>(in), static_cast<T*>(values), places});
  });
}

}  // namespace

void sum(const void* in, void* out, const Rows& rows, DType dtype, double scale) {
  for_number(dtype, [&]<class T>(T) {
    launch_reduce("sum", rows, SumOf<T>{static_cast<const T*>(in), static_cast<typename SumOf<T>::Out*>(out), scale});
  });
}

void sum_squares(const void* in, const void* center, void* out, const Rows& rows, DType dtype, double scale) {
  for_float(dtype, [&]<class T>(T) {
    launch_reduce(
        "sum_squares", rows,
        SumOfSquares<T>{static_cast<const T*>(in), static_cast<const T*>(center), static_cast<T*>(out), scale});
  });
}

void prod(const void* in, void* out, const Rows& rows, DType dtype) {
  const auto launch = [&]<class T>(T) {
    launch_reduce("prod", rows, ProductOf<T>{static_cast<const T*>(in), static_cast<T*>(out)});
  };
  dtype == kInt64 ? launch(std::uint64_t{}) : for_float(dtype, launch);
}

void max(const void* in, void* out, const Rows& rows, DType dtype) {
  extreme<Greatest>("max", in, out, nullptr, rows, dtype);
}
void min(const void* in, void* out, const Rows& rows, DType dtype) {
  extreme<Least>("min", in, out, nullptr, rows, dtype);
}
void argmax(const void* in, std::int64_t* out, const Rows& rows, DType dtype) {
  extreme<Greatest>("argmax", in, nullptr, out, rows, dtype);
}
void argmin(const void* in, std::int64_t* out, const Rows& rows, DType dtype) {
  extreme<Least>("argmin", in, nullptr, out, rows, dtype);
}

}  // namespace lockstep::LOCKSTEP_KERNELS
