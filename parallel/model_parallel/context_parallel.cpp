#include "lockstep/parallel/model_parallel/context_parallel.h"

#include <string>
#include <utility>

#include "lockstep/autograd/attention_context_internal.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/model_parallel/context_blocks_internal.h"
#include "lockstep/parallel/model_parallel/ring_internal.h"
#include "lockstep/parallel/model_parallel/ulysses_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

SequenceBlocks blocks_of(const DeviceMesh& axis, ContextAttention attention) {
  return {.count = axis.size(), .own = axis.rank(), .is_zigzag = attention == ContextAttention::kRingZigzag};
}

void require_one_axis(const char* op, const DeviceMesh& axis) {
  const std::vector<MeshAxis> axes = axis.axes();
  LOCKSTEP_CHECK(axes.size() == 1,
                 "{}: the mesh has the axes {}; pass the one whose ranks share each sequence, for example mesh[\"cp\"]",
                 op, axis.to_string());
}

// Attached to a group: how split_sequence has cut the last sequences.
struct LastSplit {
  bool is_any = false, is_zigzag = false;
};

// Installs itself as the attention context of what runs in a module and below it.
class ContextRunner final : public SharedRunner, public autograd::AttentionContext {
 public:
  ContextRunner(const DeviceMesh& axis, const ContextParallelOptions& options)
      : SharedRunner(Part::kSequence, axis.group()), options_(options), blocks_(blocks_of(axis, options.attention)) {}

  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override {
    count_run();
    const autograd::AttentionContextGuard context(this);
    return forward(inputs);
  }

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) const override {
    require(q, k, v, options);
    if (q.size(-2) == 0) {  // no positions on any rank
      const autograd::AttentionContextGuard without_context(nullptr);
      return scaled_dot_product_attention(q, k, v, {.scale = options.scale, .enable_gqa = options.enable_gqa});
    }
    if (options_.attention == ContextAttention::kUlysses) return ulysses_attention(group, q, k, v, options);
    return ring_attention({group, blocks_, options_.gather_keys}, q, k, v, options);
  }
  std::int64_t all_keys(std::int64_t own) const override { return own * blocks_.count; }
  Tensor positions(std::int64_t own) const override { return blocks_.part(arange(all_keys(own)), 0, blocks_.own); }

 private:
  void require(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) const;

  ContextParallelOptions options_;
  SequenceBlocks blocks_;
};

void ContextRunner::require(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) const {
  require_attention_operands(q, k, v, options);
  LOCKSTEP_CHECK(
      q.size(-2) == k.size(-2),
      "context_parallel: q is {}, k is {}; expected as many queries as keys: cross-attention to another length "
      "is not supported",
      describe(q), describe(k));
  LOCKSTEP_CHECK(!blocks_.is_zigzag || q.size(-2) % 2 == 0,
                 "context_parallel: {} positions on this rank are not two equal half blocks, as kRingZigzag needs; cut "
                 "sequences with split_sequence",
                 q.size(-2));
  const LastSplit& split = group->attachment<LastSplit>();
  LOCKSTEP_CHECK(
      !split.is_any || split.is_zigzag == blocks_.is_zigzag,
      "context_parallel: the module's attention is {}, but split_sequence has cut the sequences {}; pass the "
      "same ContextAttention to both",
      name_of(options_.attention), split.is_zigzag ? "for kRingZigzag" : "for kRing and kUlysses");
  const Tensor& mask = options.attn_mask;
  if (!mask.defined()) return;
  LOCKSTEP_CHECK(!autograd::requires_grad(mask),
                 "context_parallel: attn_mask requires grad, which is not supported; pass mask.detach()");
  LOCKSTEP_CHECK(mask.dim() >= 1,
                 "context_parallel: attn_mask has no dimensions; expected (..., time, time of all ranks)");
  LOCKSTEP_CHECK(mask.size(-1) == 1 || mask.size(-1) == all_keys(q.size(-2)),
                 "context_parallel: attn_mask is {}; expected (..., {}, {}): rows for the {} positions of this rank, "
                 "columns for those of all {} ranks, in global order",
                 describe(mask), q.size(-2), all_keys(q.size(-2)), q.size(-2), blocks_.count);
  if (options.enable_gqa) return;  // checked with grouped heads
  Shape scores = attention_batch(q, k, v);
  scores.push_back(q.size(-2)), scores.push_back(all_keys(q.size(-2)));
  require_attention_mask(mask, q, scores, options.is_causal);
}

}  // namespace

void context_parallel(nn::Module& module, const DeviceMesh& axis, const ContextParallelOptions& options) {
  require_one_axis("context_parallel", axis);
  if (axis.size() > 1)
    check_same_text("context_parallel: ranks have different options",
                    fmt::format("{}{}", name_of(options.attention), options.gather_keys ? ", .gather_keys" : ""),
                    *axis.group());
  for (const auto& runner : nn::runners_of(module)) {
    if (dynamic_cast<const ContextRunner*>(runner.get())) nn::remove_runner(module, runner.get());
  }
  if (axis.size() > 1) nn::add_runner(module, std::make_shared<const ContextRunner>(axis, options));
}

std::vector<Tensor> split_sequence(const std::vector<Tensor>& batch, const DeviceMesh& axis,
                                   ContextAttention attention) {
  require_one_axis("split_sequence", axis);
  const SequenceBlocks blocks = blocks_of(axis, attention);
  if (blocks.count == 1) return batch;
  check_same_batch("split_sequence", batch, *axis.group(),
                   "must load the same sequences; give a sampler the rank and size of the axis dp, or those of "
                   "run.first_micro_batch()");
  axis.group()->attachment<LastSplit>() = {.is_any = true, .is_zigzag = blocks.is_zigzag};
  std::vector<Tensor> own;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Tensor& whole = batch[i];
    LOCKSTEP_CHECK(whole.defined() && whole.dim() >= 2,
                   "split_sequence: tensor {} is {}; expected (batch, time, ...): positions are "
                   "arange(time).expand({{batch, time}})",
                   i, whole.defined() ? describe(whole) : "undefined");
    LOCKSTEP_CHECK(whole.size(1) % blocks.parts() == 0,
                   "split_sequence: tensor {} is {}: {} positions cannot be cut into {} equal parts{}; use sequences "
                   "of {} positions",
                   i, describe(whole), whole.size(1), blocks.parts(), blocks.is_zigzag ? " (2 for each rank)" : "",
                   (whole.size(1) / blocks.parts() + 1) * blocks.parts());
    own.push_back(blocks.part(whole, 1, blocks.own).contiguous());
  }
  return own;
}

}  // namespace lockstep::parallel
