// Formats names and shapes for messages. Not installed.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// Number of insertions, deletions and substitutions that turn one name into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Shape and dtype of a tensor, for messages: "(2, 3) f32".
std::string shape_and_dtype(const Tensor& tensor);

}  // namespace lockstep::nn
