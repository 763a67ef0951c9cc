/// \file
/// Context parallelism: each rank has a sequence block, a part of every sequence, and attention reads the keys and
/// values of all ranks. Sequences can therefore be as long as the memory of all ranks together permits.
///
///     const DeviceMesh mesh(group, {{"dp", 2}, {"cp", 4}});
///     context_parallel(model, mesh["cp"]);
///     DistributedDataParallel run(model, mesh.flatten({"cp", "dp"}).group());
///     auto mine = split_sequence({tokens, positions, targets}, mesh["cp"]);  // (batch, time) -> (batch, time / 4)
///
/// A sequence block counts as a micro-batch: gradients are means over micro-batches and sequence blocks, in any
/// mode over the flattened group. Everything but attention works on one sequence block alone, so positions must be an
/// input of the model; the model must not number them itself. The number of sequence blocks and the kind of attention
/// determine the bits; the number of ranks that share the micro-batches does not (docs/mesh.md has the conditions).
/// Results of several sequence blocks and of one differ by rounding.
///
/// Attention below the module may have no mask, .is_causal, or an attn_mask of shape (..., time of this rank, time of
/// the whole sequence): rows in the order of this rank's positions, columns in global order. MultiheadAttention also
/// takes a key_padding_mask (batch, time of the whole sequence). Queries and keys must have the same positions. A mask
/// that requires grad throws InvalidArgument, and so do second derivatives with rings.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/device_mesh.h"

namespace lockstep::parallel {

/// How attention over C sequence blocks is computed.
enum class ContextAttention : std::uint8_t {
  /// Sequence block i is half blocks i and 2C - 1 - i of 2C, so that all ranks have the same work under a causal mask.
  /// Each rank sends keys and values on to the next rank, and merges the results of one sequence block after another.
  /// (Liu et al., 2023; zigzag: Zhu, 2024)
  kRingZigzag,
  kRing,     ///< the same with contiguous sequence blocks; under a causal mask the last rank has the most work
  kUlysses,  ///< divided as in kRing; a rank attends over all positions, with 1 / C of the heads (Jacobs et al., 2023)
};

/// Options of context_parallel.
struct ContextParallelOptions {
  ContextAttention attention = ContextAttention::kRingZigzag;  ///< how attention is computed
  /// Rings only: gather the keys and values of all ranks at once, and keep them for backward, where only their
  /// gradients are exchanged. One collective instead of C - 1 messages, at the cost of memory for all keys and values.
  /// The bits are the same.
  bool gather_keys = false;
};

/// Makes every scaled_dot_product_attention that runs in `module` and below it attend to the keys of all ranks of
/// `axis`, also when autograd::checkpoint repeats it. All ranks of the axis must run the same attentions, forward and
/// backward. Collective along the axis. Call it before the training mode is constructed. A later call changes the
/// options; an axis of one rank removes context parallelism. Throws InvalidArgument for a mesh of several axes, and
/// CommError if ranks have different options.
void context_parallel(nn::Module& module, const DeviceMesh& axis, const ContextParallelOptions& options = {});

/// Returns this rank's sequence block of each tensor (batch, time, ...), contiguous: for example of tokens, positions
/// and targets. Collective along the axis, on the thread of the training step. Throws InvalidArgument on all ranks if
/// they pass different tensors, and, with the index of the tensor, if its time is not divisible by C (kRingZigzag: 2C).
std::vector<Tensor> split_sequence(const std::vector<Tensor>& batch, const DeviceMesh& axis,
                                   ContextAttention attention = ContextAttention::kRingZigzag);

}  // namespace lockstep::parallel
