/// \file
/// Context parallelism: each rank has a block of every sequence, and attention reads the keys and values of all blocks.
/// So sequences can be as long as the memory of all ranks together permits.
///
///     const DeviceMesh mesh(group, {{"cp", 4}, {"dp", 2}});
///     context_parallel(model, mesh["cp"]);
///     DistributedDataParallel run(model, mesh.flatten({"cp", "dp"}).group());
///     auto mine = split_sequence({tokens, positions, targets}, mesh["cp"]);  // (batch, time) -> (batch, time / 4)
///
/// A block of a sequence is one more piece of a micro-batch: gradients are means over micro-batches and blocks, in any
/// mode over the flattened group. Everything but attention works on a block alone, so positions are an input of the
/// model: it must not count them itself. The number of blocks and the kind of attention determine the bits; they do
/// not depend on how many ranks share the micro-batches. Against one block, results differ by rounding.
///
/// Attention below the module may have no mask, .is_causal, or an attn_mask of shape (..., time of this rank, time of
/// the whole sequence): rows as this rank has them, columns in global order. MultiheadAttention also takes a
/// key_padding_mask (batch, time of the whole sequence). Keys and queries are those of the same positions. A mask that
/// requires grad, and second derivatives, throw InvalidArgument.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/device_mesh.h"

namespace lockstep::parallel {

/// How attention over C blocks is computed.
enum class ContextAttention : std::uint8_t {
  /// Block i is chunks i and 2C - 1 - i of 2C, so that all ranks have the same work under a causal mask. Keys and values
  /// travel round the ranks, and each rank merges the results of one block after another. (Liu et al., 2023; zigzag:
  /// Zhu, 2024)
  kRingZigzag,
  kRing,     ///< the same with block i as chunk i of C; under a causal mask the last rank has most work
  kUlysses,  ///< block i is chunk i of C; attention is on all positions and 1 / C of the heads (Jacobs et al., 2023)
};

/// Options of context_parallel.
struct ContextParallelOptions {
  ContextAttention attention = ContextAttention::kRingZigzag;
  /// Rings only: gather the keys and values of all blocks at once, and keep them for backward, where only their
  /// gradients are exchanged. One collective instead of C - 1 messages, for the memory of all keys and values. The bits
  /// are the same.
  bool gather_keys = false;
};

/// Makes every scaled_dot_product_attention that runs in `module` and below it attend to the keys of all ranks of
/// `axis`, also when autograd::checkpoint repeats it. All ranks of the axis must run the same attentions. Call it before
/// the training mode is constructed; again to change the options. An axis of one rank changes nothing. Throws
/// InvalidArgument for a mesh of several axes.
void context_parallel(nn::Module& module, const DeviceMesh& axis, const ContextParallelOptions& options = {});

/// This rank's block of each tensor (batch, time, ...), contiguous: for example of tokens, their positions and targets.
/// Throws InvalidArgument, naming the tensor by its number, if its time is not divisible by C (kRingZigzag: 2C).
std::vector<Tensor> split_sequence(const std::vector<Tensor>& batch, const DeviceMesh& axis,
                                   ContextAttention attention = ContextAttention::kRingZigzag);

}  // namespace lockstep::parallel
