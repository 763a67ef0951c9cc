/// \file
/// The cross-entropy loss of logits that are cut along the vocabulary and not gathered:
///
///     parallelize(model, mesh["tp"], {.plan = {{"head", VocabParallel{.gather_output = false}}}});
///     const VocabCrossEntropyLoss criterion(model, "head");
///     criterion(model(x).flatten(0, 1), y.flatten());
///
/// Each rank has the logits of its slices alone; the ranks exchange three numbers for each position, and no logits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::parallel {

/// Options of VocabCrossEntropyLoss.
struct VocabCrossEntropyLossOptions {
  std::int64_t ignore_index = -100;  ///< positions of this class are ignored
};

/// The mean of log(sum_c e^x_c) - x_y over the positions that are not ignored (NaN if there are none).
class VocabCrossEntropyLoss : public nn::Module {
 public:
  /// `head` is the path of the linear layer of the logits; `model` must outlive this object. Without tensor parallelism,
  /// and inside run.gathered, this is nn::CrossEntropyLoss.
  /// Throws InvalidArgument for a path that names no module, and for a layer whose logits are gathered.
  VocabCrossEntropyLoss(const nn::Module& model, const std::string& head,
                        const VocabCrossEntropyLossOptions& options = {});
  ~VocabCrossEntropyLoss() override;
  /// logits (n, columns of this rank) and target (n), classes of the whole vocabulary -> 0-d, f32 for f16 and bf16. The
  /// same on all ranks. Throws InvalidArgument, naming both, for other shapes and for a class outside the vocabulary.
  Tensor operator()(const Tensor& logits, const Tensor& target) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
