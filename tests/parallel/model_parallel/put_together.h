// Whole parameters, put together from the pieces and slices of all ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/testing.h"

namespace put_together {

using Parameters = std::map<std::string, std::vector<float>>;

constexpr float kUnset = 12345;

// Adds the elements that this rank has of a parameter. Several ranks may have equal ones.
inline void put(const ls::parallel::ShardedParameter& piece, Parameters& parameters) {
  const ls::nn::ParameterSlice* const slice = piece.parameter.slice();
  std::vector<float>& whole = parameters[slice ? slice->name : piece.name];
  whole.resize(static_cast<std::size_t>(slice ? slice->shape.numel() : piece.shape.numel()), kUnset);
  const std::vector<float> values = piece.parameter.master().detach().reshape({-1}).to_vector<float>();
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
    const std::int64_t in_slice = piece.part.at(i);
    float& element = whole[static_cast<std::size_t>(slice ? slice->part.at(in_slice) : in_slice)];
    const float value = values[static_cast<std::size_t>(i)];
    if (element != kUnset && element != value) {
      FAIL_CHECK("ranks have different values of ", piece.name);
      return;
    }
    element = value;
  }
}

}  // namespace put_together
