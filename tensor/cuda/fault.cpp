#include "lockstep/tensor/cuda/fault_internal.h"

#include <fmt/format.h>

namespace lockstep::cuda {

std::string describe(const Fault& fault, int device) {
  const auto what = [&]() -> std::string {
    switch (fault.kind) {
      case Fault::kIndex:
        return fmt::format("index_select, gather, index_add or scatter: index {} is outside [0, {})", fault.value,
                           fault.limit);
      case Fault::kClass:
        return fmt::format("cross_entropy or nll_loss: the target of sample {} is class {}, expected 0 to {}",
                           fault.place, fault.value, fault.limit - 1);
      default:
        return fmt::format("bce_loss: x at element {} is not a probability, expected 0 to 1", fault.place);
    }
  };
  return fmt::format("cuda:{}: an earlier operation: {}\nSet LOCKSTEP_CUDA_SYNC=1 to find the call", device, what());
}

}  // namespace lockstep::cuda
