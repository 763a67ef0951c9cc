// Fashion-MNIST for the samples that train on it: 60,000 pictures of 28 x 28 pixels in ten classes, and 10,000 to test with.
#pragma once

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

#include "support/run.h"

namespace samples::fashion_mnist {

// Part `name`, "train" or "t10k", of the four files in `folder`: pictures (28, 28), standardised, and labels. Throws IoError
// where they are not there.
std::shared_ptr<ls::data::IdxDataset> open(const std::string& folder, const std::string& name);

// Mean loss, and the share of pictures whose class has the highest score. The model is in eval mode meanwhile, and in
// training mode afterwards.
Score evaluate(ls::nn::Module& model, const ls::nn::CrossEntropyLoss& criterion, ls::data::DataLoader<>& loader);

}  // namespace samples::fashion_mnist
