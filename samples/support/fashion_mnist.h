// Training on Fashion-MNIST, shared by several samples: 60,000 images of 28 x 28 pixels in ten classes, and 10,000
// test images. The samples differ only in the model.
#pragma once

#include <lockstep/lockstep.h>

#include <string>

#include "support/run.h"

namespace samples::fashion_mnist {

// Trains `model`, from images (batch, 28, 28) to scores (batch, 10), and returns the program's exit code. Prints
// `try_next` at the end. Throws lockstep::IoError if the data are missing.
int train(const Options& options, ls::nn::Module& model, const std::string& try_next);

}  // namespace samples::fashion_mnist
