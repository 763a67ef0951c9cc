#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/utilities.h"
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

std::uint64_t parameter_hash(const Module& module) {
  Hash hash;
  for (const Parameter& parameter : module.parameters()) add(hash, parameter.master());
  for (const Buffer& buffer : module.buffers()) add(hash, buffer.master());
  return hash.digest();
}

}  // namespace lockstep::nn
