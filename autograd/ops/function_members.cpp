// The members of Tensor that are free functions of functions.h.
#include "lockstep/autograd/ops/functions.h"

namespace lockstep {

// --- reductions as members ------------------------------------------------------------------------------------------------------

Tensor Tensor::sum(const Shape& dims, bool keepdim) const { return lockstep::sum(*this, dims, keepdim); }
Tensor Tensor::mean(const Shape& dims, bool keepdim) const { return lockstep::mean(*this, dims, keepdim); }
Tensor Tensor::amax(const Shape& dims, bool keepdim) const { return lockstep::amax(*this, dims, keepdim); }
Tensor Tensor::amin(const Shape& dims, bool keepdim) const { return lockstep::amin(*this, dims, keepdim); }
Tensor Tensor::max() const { return lockstep::max(*this); }
Tensor Tensor::max(const Tensor& other) const { return lockstep::max(*this, other); }
std::pair<Tensor, Tensor> Tensor::max(std::int64_t dim, bool keepdim) const {
  return lockstep::max(*this, dim, keepdim);
}
Tensor Tensor::min() const { return lockstep::min(*this); }
Tensor Tensor::min(const Tensor& other) const { return lockstep::min(*this, other); }
std::pair<Tensor, Tensor> Tensor::min(std::int64_t dim, bool keepdim) const {
  return lockstep::min(*this, dim, keepdim);
}
Tensor Tensor::var(const Shape& dims, const VarOptions& options) const { return lockstep::var(*this, dims, options); }
Tensor Tensor::std(const Shape& dims, const VarOptions& options) const { return lockstep::std(*this, dims, options); }
Tensor Tensor::norm(const Scalar& p, const Shape& dims, bool keepdim) const {
  return lockstep::norm(*this, p, dims, keepdim);
}
Tensor Tensor::prod() const { return lockstep::prod(*this); }
Tensor Tensor::prod(std::int64_t dim, bool keepdim) const { return lockstep::prod(*this, dim, keepdim); }
Tensor Tensor::argmax(std::optional<std::int64_t> dim, bool keepdim) const {
  return lockstep::argmax(*this, dim, keepdim);
}
Tensor Tensor::argmin(std::optional<std::int64_t> dim, bool keepdim) const {
  return lockstep::argmin(*this, dim, keepdim);
}

// --- functions as members -------------------------------------------------------------------------------------------------------

Tensor Tensor::add(const Tensor& other, const Scalar& alpha) const { return lockstep::add(*this, other, alpha); }
Tensor Tensor::add(const Scalar& other) const { return lockstep::add(*this, other); }
Tensor Tensor::sub(const Tensor& other, const Scalar& alpha) const { return lockstep::sub(*this, other, alpha); }
Tensor Tensor::sub(const Scalar& other) const { return lockstep::sub(*this, other); }
Tensor Tensor::mul(const Tensor& other) const { return lockstep::mul(*this, other); }
Tensor Tensor::mul(const Scalar& other) const { return lockstep::mul(*this, other); }
Tensor Tensor::div(const Tensor& other) const { return lockstep::div(*this, other); }
Tensor Tensor::div(const Scalar& other) const { return lockstep::div(*this, other); }
Tensor Tensor::eq(const Tensor& other) const { return *this == other; }
Tensor Tensor::eq(const Scalar& other) const { return *this == other; }
Tensor Tensor::ne(const Tensor& other) const { return *this != other; }
Tensor Tensor::ne(const Scalar& other) const { return *this != other; }
Tensor Tensor::lt(const Tensor& other) const { return *this < other; }
Tensor Tensor::lt(const Scalar& other) const { return *this < other; }
Tensor Tensor::le(const Tensor& other) const { return *this <= other; }
Tensor Tensor::le(const Scalar& other) const { return *this <= other; }
Tensor Tensor::gt(const Tensor& other) const { return *this > other; }
Tensor Tensor::gt(const Scalar& other) const { return *this > other; }
Tensor Tensor::ge(const Tensor& other) const { return *this >= other; }
Tensor Tensor::ge(const Scalar& other) const { return *this >= other; }
Tensor Tensor::pow(const Tensor& exponent) const { return lockstep::pow(*this, exponent); }
Tensor Tensor::pow(const Scalar& exponent) const { return lockstep::pow(*this, exponent); }
Tensor Tensor::abs() const { return lockstep::abs(*this); }
Tensor Tensor::exp() const { return lockstep::exp(*this); }
Tensor Tensor::log() const { return lockstep::log(*this); }
Tensor Tensor::sqrt() const { return lockstep::sqrt(*this); }
Tensor Tensor::relu() const { return lockstep::relu(*this); }
Tensor Tensor::sigmoid() const { return lockstep::sigmoid(*this); }
Tensor Tensor::tanh() const { return lockstep::tanh(*this); }
Tensor Tensor::sin() const { return lockstep::sin(*this); }
Tensor Tensor::cos() const { return lockstep::cos(*this); }
Tensor Tensor::floor() const { return lockstep::floor(*this); }
Tensor Tensor::ceil() const { return lockstep::ceil(*this); }
Tensor Tensor::round() const { return lockstep::round(*this); }
Tensor Tensor::trunc() const { return lockstep::trunc(*this); }
Tensor Tensor::sign() const { return lockstep::sign(*this); }
Tensor Tensor::neg() const { return lockstep::neg(*this); }
Tensor Tensor::square() const { return lockstep::square(*this); }
Tensor Tensor::reciprocal() const { return lockstep::reciprocal(*this); }
Tensor Tensor::rsqrt() const { return lockstep::rsqrt(*this); }
Tensor Tensor::isnan() const { return lockstep::isnan(*this); }
Tensor Tensor::isfinite() const { return lockstep::isfinite(*this); }
Tensor Tensor::logical_not() const { return lockstep::logical_not(*this); }
Tensor Tensor::remainder(const Tensor& other) const { return lockstep::remainder(*this, other); }
Tensor Tensor::remainder(const Scalar& other) const { return lockstep::remainder(*this, other); }
Tensor Tensor::clamp(const std::optional<Scalar>& lo, const std::optional<Scalar>& hi) const {
  return lockstep::clamp(*this, lo, hi);
}
Tensor Tensor::softmax(std::int64_t dim) const { return lockstep::softmax(*this, dim); }
Tensor Tensor::log_softmax(std::int64_t dim) const { return lockstep::log_softmax(*this, dim); }
Tensor Tensor::matmul(const Tensor& other) const { return lockstep::matmul(*this, other); }
Tensor Tensor::mm(const Tensor& other) const { return lockstep::mm(*this, other); }
Tensor Tensor::bmm(const Tensor& other) const { return lockstep::bmm(*this, other); }
Tensor Tensor::dot(const Tensor& other) const { return lockstep::dot(*this, other); }
Tensor Tensor::any(const Shape& dims, bool keepdim) const { return lockstep::any(*this, dims, keepdim); }
Tensor Tensor::all(const Shape& dims, bool keepdim) const { return lockstep::all(*this, dims, keepdim); }
Tensor Tensor::logsumexp(const Shape& dims, bool keepdim) const { return lockstep::logsumexp(*this, dims, keepdim); }
Tensor Tensor::cumsum(std::int64_t dim) const { return lockstep::cumsum(*this, dim); }
std::vector<Tensor> Tensor::split(std::int64_t size, std::int64_t dim) const {
  return lockstep::split(*this, size, dim);
}
std::vector<Tensor> Tensor::split(const std::vector<std::int64_t>& sizes, std::int64_t dim) const {
  return lockstep::split(*this, sizes, dim);
}
std::vector<Tensor> Tensor::unbind(std::int64_t dim) const { return lockstep::unbind(*this, dim); }
std::vector<Tensor> Tensor::chunk(std::int64_t count, std::int64_t dim) const {
  return lockstep::chunk(*this, count, dim);
}
Tensor Tensor::masked_fill(const Tensor& mask, const Scalar& value) const {
  return lockstep::masked_fill(*this, mask, value);
}
Tensor Tensor::tril(std::int64_t diagonal) const { return lockstep::tril(*this, diagonal); }
Tensor Tensor::triu(std::int64_t diagonal) const { return lockstep::triu(*this, diagonal); }
Tensor Tensor::flip(const Shape& dims) const { return lockstep::flip(*this, dims); }
Tensor Tensor::roll(const Shape& shifts, const Shape& dims) const { return lockstep::roll(*this, shifts, dims); }
Tensor Tensor::repeat_interleave(std::int64_t repeats, std::optional<std::int64_t> dim) const {
  return lockstep::repeat_interleave(*this, repeats, dim);
}
Tensor Tensor::movedim(const Shape& source, const Shape& destination) const {
  return lockstep::movedim(*this, source, destination);
}
Tensor Tensor::diag(std::int64_t offset) const { return lockstep::diag(*this, offset); }
Tensor Tensor::diagonal(std::int64_t offset, std::int64_t dim1, std::int64_t dim2) const {
  return lockstep::diagonal(*this, offset, dim1, dim2);
}
Tensor Tensor::nonzero() const { return lockstep::nonzero(*this); }
Tensor Tensor::masked_select(const Tensor& mask) const { return lockstep::masked_select(*this, mask); }
Tensor Tensor::argsort(std::int64_t dim, bool descending) const { return lockstep::argsort(*this, dim, descending); }
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  return lockstep::scatter(*this, dim, index, src);
}
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, const Scalar& value) const {
  return lockstep::scatter(*this, dim, index, value);
}
Tensor Tensor::index_add(std::int64_t dim, const Tensor& index, const Tensor& src, const Scalar& alpha) const {
  return lockstep::index_add(*this, dim, index, src, alpha);
}
Tensor Tensor::index_select(std::int64_t dim, const Tensor& index) const {
  return lockstep::index_select(*this, dim, index);
}
Tensor Tensor::gather(std::int64_t dim, const Tensor& index) const { return lockstep::gather(*this, dim, index); }
Tensor Tensor::scatter_add(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  return lockstep::scatter_add(*this, dim, index, src);
}
std::pair<Tensor, Tensor> Tensor::sort(std::int64_t dim, bool descending) const {
  return lockstep::sort(*this, dim, descending);
}
std::pair<Tensor, Tensor> Tensor::topk(std::int64_t k, std::int64_t dim, bool largest) const {
  return lockstep::topk(*this, k, dim, largest);
}

}  // namespace lockstep
