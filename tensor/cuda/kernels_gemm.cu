// Products of matrices: cuBLAS, then the bias where it has not added that as well.
#include "lockstep/tensor/cuda/launch.h"
#include "lockstep/tensor/for_dtype_internal.h"
#include "lockstep/tensor/wide_internal.h"

#ifdef __CUDACC__
#include "lockstep/tensor/cuda/products.h"
#endif

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

namespace {

template <class T>
struct AddBias {  // out (batch, m, n) += bias (n)
  Gemm g;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const std::int64_t column = i % g.n, row = i / g.n % g.m, problem = i / (g.n * g.m);
    T* const at = static_cast<T*>(g.out.data) + problem * g.out_step + row * g.out.row + column * g.out.column;
    *at = narrow<T>(widen(*at) + widen(static_cast<const T*>(g.bias)[column]));
  }
};

#ifndef __CUDACC__
template <class T>
struct NaiveProduct {
  Gemm g;
  void operator()(std::int64_t i) const {
    const std::int64_t column = i % g.n, row = i / g.n % g.m, problem = i / (g.n * g.m);
    const T* const a = static_cast<const T*>(g.a.data) + problem * g.a_step;
    const T* const b = static_cast<const T*>(g.b.data) + problem * g.b_step;
    Wide<T> total = 0;
    for (std::int64_t p = 0; p < g.k; ++p)
      total += widen(a[row * g.a.row + p * g.a.column]) * widen(b[p * g.b.row + column * g.b.column]);
    static_cast<T*>(g.out.data)[problem * g.out_step + row * g.out.row + column * g.out.column] = narrow<T>(total);
  }
};
#endif

template <class F>
void for_factor(DType dtype, F function) {
  if (dtype == kFloat16) return function(Half{});
  if (dtype == kBFloat16) return function(BFloat16{});
  for_float(dtype, function);
}

}  // namespace

void gemm(const Gemm& g, DType dtype) {
  for_factor(dtype, [&]<class T>(T) {
#ifdef __CUDACC__
    if (g.bias && cuda::product_with_bias(g, dtype)) return;
    cuda::product(g, dtype);
#else
    launch_elements("gemm", g.batch * g.m * g.n, NaiveProduct<T>{g});
#endif
    if (g.bias) launch_elements("linear", g.batch * g.m * g.n, AddBias<T>{g});
  });
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
