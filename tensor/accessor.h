/// \file
/// TensorAccessor: the elements of a CPU tensor by index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/version.h"

namespace lockstep {

/// The elements T of a tensor with N dimensions: `a[i][j]`, with any strides. As in LibTorch, indices are not checked:
/// outside [0, size(dim)) the behaviour is undefined. Tensor::accessor returns it; the tensor must outlive it.
template <class T, std::size_t N>
class TensorAccessor {
 public:
  TensorAccessor(T* data, const std::int64_t* sizes, const std::int64_t* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  T* data() const { return data_; }                                     ///< the first element
  std::int64_t size(std::size_t dim) const { return sizes_[dim]; }      ///< of one dimension
  std::int64_t stride(std::size_t dim) const { return strides_[dim]; }  ///< in elements
  /// An accessor with one dimension less; with one dimension, the element.
  decltype(auto) operator[](std::int64_t index) const {
    T* const at = data_ + index * strides_[0];
    if constexpr (N == 1)
      return static_cast<T&>(*at);
    else
      return TensorAccessor<T, N - 1>(at, sizes_ + 1, strides_ + 1);
  }

 private:
  T* data_;
  const std::int64_t* sizes_;
  const std::int64_t* strides_;
};

}  // namespace lockstep
