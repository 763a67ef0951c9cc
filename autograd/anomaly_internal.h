// What backward checks of operations that were recorded under AnomalyGuard.
#pragma once

#include "lockstep/autograd/node.h"

namespace lockstep::autograd {

bool has_nan(const Tensors& gradients);
// Throws InvalidArgument if one of the gradients that the node computed has a NaN. `received_nan`: one of those that it
// received had one.
void check_anomaly(const Node& node, bool received_nan, const Gradients& gradients);

}  // namespace lockstep::autograd
