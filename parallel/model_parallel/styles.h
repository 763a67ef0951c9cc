/// \file
/// How the modules of a model are cut for tensor parallelism: pairs of a path pattern and a style.
///
///     ParallelPlan plan = {{"blocks.*.up", ColwiseParallel{}}, {"blocks.*.down", RowwiseParallel{}}};
///
/// With one tensor slice, a style changes nothing, but for Recompute.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::parallel {

/// A Linear whose outputs are cut.
struct ColwiseParallel {
  int parts = 1;        ///< the outputs are so many equal parts, each of which is cut: 3 for q, k and v in one
  int multiple_of = 1;  ///< a slice of a part has a multiple of so many outputs: the size of a head
  int repeat = 1;       ///< slices that share each output: slices / heads of k, if there are fewer heads of k and v
  bool gather_output = false;  ///< whole outputs on every rank
};
/// A Linear whose inputs are cut, after one whose outputs are.
struct RowwiseParallel {};
/// An Embedding, or the Linear of the logits, that is cut along the vocabulary.
struct VocabParallel {
  bool gather_output = true;  ///< whole logits on every rank
};
/// A module outside of the cut ones that works on a part of the sequence. Between a ColwiseParallel layer and the
/// RowwiseParallel one, a norm of each head, as q_norm: it runs once for each slice, on the slice's heads (batch, time,
/// heads, dim), (batch, heads, time, dim), or (batch, time, dim) where a slice has one. In a copy of the columns, as
/// transpose(1, 2).contiguous(), the time must not be as long as this rank's heads. There, a module with parameters needs
/// this style.
struct SequenceParallel {};
/// A MultiheadAttention whose heads are cut, with its projections. The number of heads must be divisible by that of
/// slices. An attn_mask for each head is passed for all heads.
struct AttentionParallel {};
/// A module that is recomputed in backward, as by autograd::checkpoint, when it is called as module(x).
struct Recompute {};

using ParallelStyle = std::variant<ColwiseParallel, RowwiseParallel, VocabParallel, SequenceParallel, AttentionParallel,
                                   Recompute>;                            ///< of one module
using ParallelPlan = std::vector<std::pair<std::string, ParallelStyle>>;  ///< '*' stands for any text without '.'

}  // namespace lockstep::parallel
