// The checks of a backward under AnomalyGuard.
#pragma once

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/thread_context_internal.h"

namespace lockstep::autograd {

// Whether backward has to check what the node computes.
inline bool is_checked(const Node& node) { return node.checked_module || anomaly_mode(); }
bool has_nan(const Tensors& gradients);
// Throws InvalidArgument if one of the gradients that the node computed has a NaN. `received_nan`: one of those that it
// received had one.
void check_anomaly(const Node& node, bool received_nan, const Gradients& gradients);

}  // namespace lockstep::autograd
