#include "lockstep/tensor/ops/statistics_internal.h"

#include <type_traits>

#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::raw {
namespace {

template <class T>
void recur(const T* a, const T* b, T* out, const Rows& rows, bool reverse) {
  using Sum = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;  // unsigned: wraps, as in PyTorch
  for (std::int64_t o = 0; o < rows.outer; ++o) {
    for (std::int64_t j = 0; j < rows.inner; ++j) {
      Sum value = 0;
      for (std::int64_t step = 0; step < rows.n; ++step) {
        const std::int64_t i = (o * rows.n + (reverse ? rows.n - 1 - step : step)) * rows.inner + j;
        value = step == 0 ? static_cast<Sum>(b[i]) : static_cast<Sum>(a[i]) * value + static_cast<Sum>(b[i]);
        out[i] = static_cast<T>(value);
      }
    }
  }
}

template <class T>
void count_in_bins(const T* x, std::int64_t size, T* out, std::int64_t bins, T min, T max) {
  for (std::int64_t i = 0; i < size; ++i) {
    if (!(x[i] >= min && x[i] <= max)) continue;
    const auto bin = static_cast<std::int64_t>((x[i] - min) / (max - min) * static_cast<T>(bins));
    ++out[bin < bins ? bin : bins - 1];
  }
}

}  // namespace

Tensor recurrence(const Tensor& a, const Tensor& b, int dim, bool reverse) {
  const Tensor host_a = contiguous(to(a, Device())), host_b = contiguous(to(b, Device()));
  const Tensor out = empty(a.shape(), {.dtype = a.dtype()});
  const Rows rows = rows_along(host_a, dim);
  const auto run = [&]<class T>(T) {
    recur(static_cast<const T*>(host_a.raw_data()), static_cast<const T*>(host_b.raw_data()),
          static_cast<T*>(out.raw_data()), rows, reverse);
  };
  if (a.dtype() == kFloat32)
    run(float{});
  else if (a.dtype() == kFloat64)
    run(double{});
  else
    run(std::int64_t{});
  return to(out, a.device());
}

Tensor histogram(const Tensor& x, std::int64_t bins, double min, double max) {
  const Tensor host = contiguous(to(x, Device()));
  const Tensor out = zeros({bins}, {.dtype = x.dtype()});
  const auto run = [&]<class T>(T) {
    count_in_bins(static_cast<const T*>(host.raw_data()), x.numel(), static_cast<T*>(out.raw_data()), bins,
                  static_cast<T>(min), static_cast<T>(max));
  };
  if (x.dtype() == kFloat32)
    run(float{});
  else
    run(double{});
  return to(out, x.device());
}

}  // namespace lockstep::raw
