// Products of matrices: cuBLAS, then the bias.
#include "lockstep/tensor/cuda/launch.h"
#include "lockstep/tensor/for_dtype_internal.h"

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
    T* const out = static_cast<T*>(g.out.data) + problem * g.out_step;
    out[row * g.out.row + column * g.out.column] += static_cast<const T*>(g.bias)[column];
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
    T total = 0;
    for (std::int64_t p = 0; p < g.k; ++p)
      total += a[row * g.a.row + p * g.a.column] * b[p * g.b.row + column * g.b.column];
    static_cast<T*>(g.out.data)[problem * g.out_step + row * g.out.row + column * g.out.column] = total;
  }
};
#endif

}  // namespace

void gemm(const Gemm& g, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
#ifdef __CUDACC__
    cuda::product(g, dtype);
#else
    launch_elements("gemm", g.batch * g.m * g.n, NaiveProduct<T>{g});
#endif
    if (g.bias) launch_elements("linear", g.batch * g.m * g.n, AddBias<T>{g});
  });
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
