// The sum of squares of all gradients, as a binary tree of which any rank may compute any part.
//
// The leaves of a parameter's tree are its lines of 64 bytes, in the order of its elements (the sum of a line is defined
// in tensor/ops/line_squares_internal.h; f16 and bf16 are converted to f32 first). A node of level k adds its two halves of
// level k - 1, and covers the leaves [i 2^k, (i + 1) 2^k); leaves beyond the end count as 0. A second tree of the same
// form has the parameters as leaves, in the order of the list; a parameter without gradient counts as 0.
//
// The order of additions depends on dtypes and shapes alone. So ranks whose shards start at a line can compute the
// nodes within their shards, and one of them can add these and get the same bits as a process that has the whole
// gradients.
//
// A parameter that is divided into slices has a tree for each slice, over the lines of the slice's own elements (a
// line of 64 bytes may have elements of several runs), and between these trees and the parameter a tree of the same form
// with the slices as leaves. One slice, the whole parameter, is the rule above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::nn {

// The sum of the leaves [first, first + 2^level), where `first` is a multiple of 2^level.
struct TreeNode {
  std::int64_t first;
  int level;
  double sum;
};

// A tree over consecutive leaves, not necessarily from 0: the fewest nodes that cover them.
class TreeSum {
 public:
  void add(TreeNode node);  // the node must follow the last one without a gap
  // At most 2 log2(leaves) + 1. Adding the nodes of consecutive ranges one after another gives the nodes of the whole.
  std::span<const TreeNode> nodes() const { return {nodes_, size_}; }
  double total() const;  // the sum of all leaves, which must begin at 0

 private:
  TreeNode nodes_[2 * 64];  // the levels rise, then fall
  std::size_t size_ = 0;
};

// The lines [begin, end) of a slice.
struct Lines {
  std::int64_t begin = 0, end = 0;
};

// The lines of its slice that a part has, if its gradient is summed in `dtype`. The part starts at a line, and ends on one
// or at the slice's end. Without elements: none.
Lines lines_of(const TensorPart& part, DType dtype);

// The places of the nodes that TreeSum has for these lines, with sums of 0.
std::vector<TreeNode> nodes_of(const Lines& lines);

// The tree over the lines of `gradient`: that of a whole slice, or of the part of one that starts at line `first_line` and
// ends on a line or at the slice's end.
TreeSum sum_of_squares(const Tensor& gradient, std::int64_t first_line = 0);

}  // namespace lockstep::nn
