#include "lockstep/parallel/model_parallel/tensor_parts_internal.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/functions.h"

namespace lockstep::parallel {

using autograd::Gradients;
using autograd::Needs;

Tensor with_contiguous_gradient(const Tensor& x) {
  return autograd::record("contiguous_gradient", x.detach(), {x},
                          [](const Tensor& grad, const Needs&) { return Gradients{grad.contiguous()}; });
}

std::vector<Tensor> split_parts(const Tensor& x, std::int64_t dim, std::int64_t count) {
  if (count == 1) return {x.contiguous()};
  const std::int64_t each = x.size(dim) / count;
  std::vector<Tensor> parts;
  for (std::int64_t j = 0; j < count; ++j) parts.push_back(x.detach().narrow(dim, j * each, each).contiguous());
  return autograd::record_all("split_parts", std::move(parts), {x}, [dim](autograd::Tensors& grads, const Needs&) {
    Tensor like;
    for (const Tensor& grad : grads) like = grad.defined() ? grad : like;
    std::vector<Tensor> all;
    for (const Tensor& grad : grads) all.push_back(grad.defined() ? grad : zeros_like(like));
    return Gradients{cat(all, static_cast<int>(dim))};
  });
}

Tensor join_parts(const std::vector<Tensor>& parts, std::int64_t dim) {
  if (parts.size() == 1) return with_contiguous_gradient(parts[0]);
  std::vector<Tensor> detached;
  std::vector<std::int64_t> sizes;
  for (const Tensor& part : parts) detached.push_back(part.detach()), sizes.push_back(part.size(dim));
  return autograd::record("join_parts", cat(detached, static_cast<int>(dim)), parts,
                          [dim, sizes](const Tensor& grad, const Needs&) {
                            Gradients out;
                            std::int64_t first = 0;
                            for (const std::int64_t size : sizes)
                              out.push_back(grad.narrow(dim, std::exchange(first, first + size), size).contiguous());
                            return out;
                          });
}

}  // namespace lockstep::parallel
