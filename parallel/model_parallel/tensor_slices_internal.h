// Slices of tensors: which of them a rank has, and the sums over all of them. Not installed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

// The slices of a model, `count` over all ranks of the group: rank r has those from r * local() on.
struct TensorSlices {
  std::shared_ptr<ProcessGroup> group;  // null: this process alone
  int count = 1;
  // Sequence parallelism: outside of the regions, a rank has the positions of as many pieces of the sequence, which is
  // dimension -2, as it has slices.
  bool cuts_sequence = false;
  std::shared_ptr<ProcessGroup> mesh = nullptr;  // all ranks of the mesh of which `group` is an axis

  int ranks() const { return group ? group->size() : 1; }
  int rank() const { return group ? group->rank() : 0; }
  int local() const { return count / ranks(); }
  int first() const { return rank() * local(); }
};

// The sum of one term for each slice, this rank's in `terms`, in canonical order: pairs of neighbours, then pairs of
// pairs. In f32 for f16 and bf16, and rounded once. May write to terms[0]. Undefined terms count as 0.
Tensor sum_over_slices(const TensorSlices& slices, std::vector<Tensor> terms, Phase phase, std::string_view name);

// The same with the sum's positions of this rank, (..., time, width) to (..., time / ranks, width).
Tensor scatter_over_slices(const TensorSlices& slices, std::vector<Tensor> terms, Phase phase, std::string_view name);
// The positions of all ranks, contiguous.
Tensor gather_positions(const TensorSlices& slices, const Tensor& own, Phase phase, std::string_view name);

// The columns of all ranks, (..., columns of a rank) to (..., columns of all).
Tensor gather_columns(const TensorSlices& slices, const Tensor& own, std::string_view name);

// How a parameter is cut: along `dim`, each of `parts` equal parts of it by itself. Groups of `repeat`
// neighbouring slices share their elements, so there are `repeat` times fewer distinct slices.
struct Cut {
  std::int64_t dim = 0, parts = 1, repeat = 1;
  bool is_uneven = false;  // along the first dimension, in one part: the last slice may be smaller (see rows_of_slice)
};

// The rows [first, first + count) of slice `index`, if `rows` are cut so that all slices but the last have equally many.
struct SliceRows {
  std::int64_t first, count;
};
SliceRows rows_of_slice(std::int64_t rows, std::int64_t index, std::int64_t slices);

// This rank's distinct slices of a parameter, as parameters with memory of their own. `path` is the parameter's name in
// the model.
std::vector<nn::Parameter> cut_parameter(const nn::Parameter& whole, const std::string& path, const Cut& cut,
                                         const TensorSlices& slices);

// Replaces the module's own parameter `name` by this rank's slices of it, and returns them. None if the module has no such
// parameter (no bias). `path` is that of the module.
std::vector<nn::Parameter> cut_own_parameter(nn::Module& module, const std::string& path, const std::string& name,
                                             const Cut& cut, const TensorSlices& slices);

}  // namespace lockstep::parallel
