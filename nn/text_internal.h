// Names and shapes, made fit for messages. Not installed.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// Number of insertions, deletions and substitutions that turn one name into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// "(2, 3) f32": what matters of a tensor in a message about names and shapes.
std::string shape_and_dtype(const Tensor& tensor);

}  // namespace lockstep::nn
