// The gradients of several micro-batches that run one after another on the same parameters, added up in canonical
// order. Not installed.
//
// It works like a binary counter: a micro-batch with an even number starts a new set of gradients, one with an odd
// number is added to the newest set, and two sets of the same size are merged. So S micro-batches need at most
// log2(S) sets, and up to two micro-batches no spare one. Sets of f16 and bf16 parameters are f32.
#pragma once

#include <vector>

#include "lockstep/nn/parameter.h"

namespace lockstep::parallel {

class GradientSets {
 public:
  explicit GradientSets(std::vector<nn::Parameter> parameters);

  // Where the first set, and so the sum, is to stand; undefined tensors: anywhere.
  void set_homes(std::vector<Tensor> homes);

  // Around the backward of micro-batch 0, 1, ... of `micro_batches`. After the last one `finish` merges what is left.
  void begin(int micro_batch, int micro_batches);
  void end(int micro_batch, int micro_batches);
  // For each parameter, once the last micro-batch's gradient is complete: the sum over all micro-batches, undefined
  // where no micro-batch used it. It is the parameter's grad() from then on; of f16 and bf16 parameters it is f32,
  // and grad() is undefined.
  Tensor finish(std::size_t parameter);

 private:
  void clear();
  void reset(std::size_t parameter);
  Tensor newest(std::size_t parameter);
  std::vector<nn::Parameter> parameters_;
  std::vector<Tensor> homes_;
  std::vector<std::vector<Tensor>> sets_;  // complete sets, the largest first; undefined: that set has no gradient
  std::vector<Tensor> half_;  // of the set that an odd micro-batch completes, where that does not stand in grad()
};

}  // namespace lockstep::parallel
