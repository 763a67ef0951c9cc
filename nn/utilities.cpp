#include "lockstep/nn/utilities.h"

#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::nn {
namespace {

void add(Hash& hash, const Tensor& tensor) {
  std::int64_t head[kMaxDims + 2] = {static_cast<std::int64_t>(tensor.dtype()), tensor.dim()};
  for (int dim = 0; dim < tensor.dim(); ++dim) head[dim + 2] = tensor.size(dim);
  hash.update(std::as_bytes(std::span(head)));
  hash.update(bytes_of(raw::contiguous(raw::to(tensor, Device()))));
}

}  // namespace

double clip_grad_norm_(const std::vector<Parameter>& parameters, double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "clip_grad_norm_: max_norm is {}, expected 0 or more", max_norm);
  const NoGradGuard no_grad;
  std::vector<Tensor> grads;
  double squares = 0;
  for (const Parameter& parameter : parameters) {
    Tensor grad = parameter.master().defined() ? parameter.master().grad() : Tensor();
    if (!grad.defined()) continue;
    const double norm = raw::norm(grad).item<double>();
    squares += norm * norm;
    grads.push_back(std::move(grad));
  }
  const double total = std::sqrt(squares);
  const double factor = max_norm / (total + 1e-6);
  if (factor >= 1) return total;  // a NaN factor is applied, and makes every gradient NaN
  for (const Tensor& grad : grads) grad.mul_(factor);
  return total;
}

std::uint64_t parameter_hash(const Module& module) {
  Hash hash;
  for (const Parameter& parameter : module.parameters()) add(hash, parameter.master());
  for (const Buffer& buffer : module.buffers()) add(hash, buffer.master());
  return hash.digest();
}

}  // namespace lockstep::nn
