// Fashion-MNIST for the samples that train on it: 60,000 pictures of 28 x 28 pixels in ten classes, and 10,000 to test with.
// What differs between them is the model.
#pragma once

#include <lockstep/lockstep.h>

#include <string>

#include "support/run.h"

namespace samples::fashion_mnist {

// Trains `model`, from pictures (batch, 28, 28) to scores (batch, 10), and returns the program's exit code. `try_next` is shown
// at the end. Throws lockstep::IoError where the data are not there.
int train(const Options& options, ls::nn::Module& model, const std::string& try_next);

}  // namespace samples::fashion_mnist
