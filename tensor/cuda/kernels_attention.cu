// The public operation composes attention on CUDA devices of products and softmax, and does not call these kernels.
#include "lockstep/tensor/error.h"
#include "lockstep/tensor/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

void attention(const raw::Attention&, DType) { throw NotBuilt("attention: there is no tiled kernel for cuda devices"); }
void attention_backward(const raw::Attention&, DType) {
  throw NotBuilt("attention_backward: there is no tiled kernel for cuda devices");
}

}  // namespace lockstep::LOCKSTEP_KERNELS
