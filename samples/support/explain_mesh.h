// Explains in words what the ranks of a mesh have and send: the first part of --explain for the strategies of
// ranks on a mesh.
#pragma once

#include <cstdint>
#include <string>

#include "support/options.h"
#include "tools/report/lanes.h"

namespace samples {

// The note of a trace with the number of texts in each micro-batch of the last step.
inline constexpr const char* kTextsNote = "texts_in_micro_batch";

// The bytes that all ranks send for attention in one step, by the closed forms of docs/mesh.md.
struct AttentionBytes {
  std::int64_t forward = 0;    // keys and values, or with Ulysses queries, keys, values and results; also recomputed
  std::int64_t gradients = 0;  // of the same
};

// `ranks` ranks train in micro-batches of `texts` texts each.
AttentionBytes attention_bytes(const Options& options, int ranks, std::int64_t texts);

// The bytes that all ranks send in one step for sums over tensor slices, by the same closed forms.
struct SliceBytes {
  std::int64_t forward = 0;    // token vectors, outputs of row-parallel layers, and the loss; also recomputed
  std::int64_t gradients = 0;  // of the inputs of column-parallel layers
};
SliceBytes slice_bytes(const Options& options, int ranks, std::int64_t texts);

// The text for a step. The options are those of a strategy that has a mesh. Depends only on the arguments.
std::string explain_mesh(const Options& options, int ranks, std::int64_t texts, const report::StepView& step);

}  // namespace samples
