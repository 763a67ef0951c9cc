// Evaluation of a classifier: of images, or of the next character.
#pragma once

#include <lockstep/lockstep.h>

#include <functional>

#include "support/result.h"

namespace samples {

// The mean loss over a loader's batches, and the fraction of labels that have the highest score. x -> scores
// (..., classes), labels (...). The model is in eval mode meanwhile.
Score evaluate(
    lockstep::nn::Module& model,
    const std::function<lockstep::Tensor(const lockstep::Tensor& scores, const lockstep::Tensor& labels)>& criterion,
    lockstep::data::DataLoader<>& loader);

}  // namespace samples
