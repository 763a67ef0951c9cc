// Matrix products: small ones here, the others by cuBLAS; the bias is added afterwards if cuBLAS did not add it.
#include "lockstep/tensor/cuda/divisor_internal.h"
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/wide_internal.h"

#ifdef __CUDACC__
#include "lockstep/tensor/cuda/products_internal.h"
#endif

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// The elements of a result (batch, m, n).
template <class T>
struct Elements {
  Gemm g;
  Divisor by_m, by_n;

  explicit Elements(const Gemm& g) : g(g), by_m(g.m), by_n(g.n) {}
  struct Place {
    std::int64_t problem, row, column;
  };
  DEVICE_ONLY Place place(std::int64_t i) const {
    const Quotient row = by_n.divide(i), problem = by_m.divide(row.whole);
    return {problem.whole, problem.rest, row.rest};
  }
  DEVICE_ONLY T& operator[](const Place& at) const {
    return static_cast<T*>(g.out.data)[at.problem * g.out_step + at.row * g.out.row + at.column * g.out.column];
  }
  DEVICE_ONLY Wide<T> bias(const Place& at) const { return widen(static_cast<const T*>(g.bias)[at.column]); }
};

template <class T>
struct AddBias {
  Elements<T> out;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const auto at = out.place(i);
    out[at] = narrow<T>(widen(out[at]) + out.bias(at));
  }
};

// One thread per element.
template <class T>
struct SmallProduct {
  Elements<T> out;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const auto at = out.place(i);
    const Gemm& g = out.g;
    const T* const a = static_cast<const T*>(g.a.data) + at.problem * g.a_step + at.row * g.a.row;
    const T* const b = static_cast<const T*>(g.b.data) + at.problem * g.b_step + at.column * g.b.column;
    Wide<T> total = 0;
    UNROLL
    for (std::int64_t p = 0; p < g.k; ++p) total += widen(a[p * g.a.column]) * widen(b[p * g.b.row]);
    out[at] = narrow<T>(g.bias ? total + out.bias(at) : total);
  }
};

// Small products take less time here than cuBLAS needs to choose a kernel, and include the bias.
bool is_small(const Gemm& g) { return g.k <= 32 && g.batch * g.m * g.n <= 4096; }

template <class T>
void run_product(const Gemm& g, DType dtype) {
  const Elements<T> out(g);
  const std::int64_t count = g.batch * g.m * g.n;
  if (is_small(g)) return launch_elements("gemm", count, SmallProduct<T>{out});
#ifdef __CUDACC__
  if (g.bias && cuda::product_with_bias(g, dtype)) return;
  cuda::product(g, dtype);
#else  // the host build for tests
  static_cast<void>(dtype);
  Gemm without_bias = g;
  without_bias.bias = nullptr;
  launch_elements("gemm", count, SmallProduct<T>{Elements<T>(without_bias)});
#endif
  if (g.bias) launch_elements("linear", count, AddBias<T>{out});
}

}  // namespace

// cuBLAS takes one batch dimension, so there is a product for each index of the outer ones.
void gemm_workspace(const Gemm&, DType, std::int64_t* elements) { *elements = 0; }

void gemm(const Gemm& g, DType dtype) {
  for_floating(dtype, [&]<class T>(T) {
    for (std::int64_t i = 0; i < (g.outer ? g.outer->numel : 1); ++i) {
      Gemm part = g;
      std::int64_t offsets[3] = {};
      if (g.outer) add_offsets(*g.outer, i, offsets);
      part.outer = nullptr;
      part.out.data = static_cast<T*>(g.out.data) + offsets[0];
      part.a.data = static_cast<T*>(g.a.data) + offsets[1];
      part.b.data = static_cast<T*>(g.b.data) + offsets[2];
      run_product<T>(part, dtype);
    }
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
