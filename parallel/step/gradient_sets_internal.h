// Canonical sums of the gradients of micro-batches that run one after another on the same parameters. Not installed.
//
// The sets work like a binary counter: a micro-batch with an even number starts a new set of gradients, one with an
// odd number is added to the newest set, and two sets of the same size are merged. The first set has the memory of the
// views; S micro-batches need floor(log2((S + 1) / 2)) more. Sets of f16 and bf16 parameters are f32 and all have their
// own memory.
//
// If the model is in chunks whose backwards run apart (pipelines), each chunk has its own sets.
#pragma once

#include <bit>
#include <vector>

#include "lockstep/nn/parameter.h"

namespace lockstep::parallel {

class GradientSets {
 public:
  // All parameters are in one chunk.
  explicit GradientSets(std::vector<nn::Parameter> parameters);
  // `chunk_of`: the chunk of each parameter, below `chunks`. A chunk may have none: all of its parameters are frozen.
  GradientSets(std::vector<nn::Parameter> parameters, std::vector<int> chunk_of, int chunks);

  // Number of sets besides the first one.
  static constexpr int additional(int micro_batches) {
    return std::bit_width(static_cast<unsigned>(micro_batches + 1) / 2) - 1;
  }

  // The memory of the first set, and so of the sum, by parameter; undefined: allocated as needed.
  void set_views(std::vector<Tensor> views);

  // Forgets all gradients, those of a failed step, too: before a step without micro-batches.
  void clear();
  // Called around the backward of micro-batch 0, 1, ... of `micro_batches` in a chunk. At the end `finish` merges the
  // sets.
  void begin(int micro_batch, int micro_batches, int chunk = 0);
  void end(int micro_batch, int micro_batches, int chunk = 0);
  // Returns a parameter's sum over all micro-batches, undefined if no micro-batch used the parameter. Call it once,
  // when the last micro-batch's gradient is complete. grad() becomes this sum; for f16 and bf16 parameters, whose sum
  // is f32, grad() becomes undefined.
  Tensor finish(std::size_t parameter);
  // Replaces the sum, of sum_dtype, that `finish` has returned and will return again; undefined: there is none.
  void put(std::size_t parameter, const Tensor& sum);
  // The number of a parameter that has sets.
  std::size_t position(const nn::Parameter& parameter) const;

 private:
  struct Chunk {
    std::vector<std::size_t> parameters;    // in ascending order
    std::vector<std::vector<Tensor>> sets;  // complete sets, the largest first, by parameter; undefined: no gradient
  };
  Chunk& at(int chunk) { return chunks_[static_cast<std::size_t>(chunk)]; }
  void clear(Chunk& chunk);
  void reset(std::size_t parameter);
  Tensor newest(std::size_t parameter);
  std::vector<nn::Parameter> parameters_;
  std::vector<Tensor> views_;
  std::vector<Chunk> chunks_;
  std::vector<int> chunk_of_;  // by parameter
  std::vector<Tensor> half_;   // the even micro-batch's gradients of f16 and bf16 parameters, while the odd one runs
};

}  // namespace lockstep::parallel
