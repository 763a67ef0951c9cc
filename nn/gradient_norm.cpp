#include "lockstep/nn/gradient_norm_internal.h"

#include <bit>

#include "lockstep/tensor/ops/line_squares_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"

namespace lockstep::nn {

// Like a binary counter: two halves of a node are added as soon as both are there.
void TreeSum::add(TreeNode node) {
  while (size_ > 0 && nodes_[size_ - 1].level == node.level && (node.first >> node.level) % 2 == 1) {
    const TreeNode& left = nodes_[--size_];
    node = {.first = left.first, .level = node.level + 1, .sum = left.sum + node.sum};
  }
  nodes_[size_++] = node;
}

// The levels fall from left to right, and each node's sibling has nothing but the nodes to its right.
double TreeSum::total() const {
  double sum = 0;
  for (std::size_t i = size_; i > 0; --i) sum += nodes_[i - 1].sum;
  return sum;
}

namespace {

// Adds `count` nodes of one level, the first of them number `index` of its level. Works level by level, which is faster
// than TreeSum::add for each node. Nodes without a sibling among them are added to the tree: those at the beginning
// immediately, those at the end last, the highest level first.
void add_all(TreeSum& tree, double* sums, std::int64_t index, std::int64_t count, int level) {
  TreeNode ends[64];
  int end_count = 0;
  for (; count > 0; ++level, index /= 2, count /= 2) {
    if (index % 2 == 1) tree.add({.first = index++ << level, .level = level, .sum = *sums++}), --count;
    if (count % 2 == 1) ends[end_count++] = {(index + --count) << level, level, sums[count]};
    for (std::int64_t i = 0; i < count / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  while (end_count > 0) tree.add(ends[--end_count]);
}

}  // namespace

Lines lines_of(const TensorPart& part, DType dtype) {
  if (part.numel == 0) return {};
  const auto line = kLineBytes / static_cast<std::int64_t>(item_size(dtype));
  return {part.begin / line, (part.begin + part.numel + line - 1) / line};
}

// The largest nodes that start at each line in turn.
std::vector<TreeNode> nodes_of(const Lines& lines) {
  std::vector<TreeNode> nodes;
  for (std::int64_t at = lines.begin; at < lines.end; at += std::int64_t{1} << nodes.back().level) {
    int level = 0;
    while (at % (std::int64_t{2} << level) == 0 && at + (std::int64_t{2} << level) <= lines.end) ++level;
    nodes.push_back({.first = at, .level = level, .sum = 0});
  }
  return nodes;
}

TreeSum sum_of_squares(const Tensor& gradient, std::int64_t first_line) {
  constexpr int kBlockLevel = std::countr_zero(static_cast<std::uint64_t>(kBlockLines));
  const Tensor x = raw::contiguous(raw::widened(gradient));
  const auto [before, blocks, after] = raw::cut_lines(x, first_line);
  const Tensor sums = raw::to(raw::line_squares(x, first_line), Device());
  auto* next = static_cast<double*>(sums.raw_data());
  TreeSum tree;
  add_all(tree, next, first_line, before, 0);
  add_all(tree, next + before, (first_line + before) / kBlockLines, blocks, kBlockLevel);
  add_all(tree, next + before + blocks, first_line + before + blocks * kBlockLines, after, 0);
  return tree;
}

}  // namespace lockstep::nn
