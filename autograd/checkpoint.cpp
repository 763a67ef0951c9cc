#include "lockstep/autograd/checkpoint.h"

#include <algorithm>
#include <optional>

#include "lockstep/autograd/anomaly_internal.h"
#include "lockstep/autograd/attention_context_internal.h"
#include "lockstep/autograd/engine_internal.h"
#include "lockstep/autograd/graph_cut_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/autocast.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep::autograd {
namespace {

// One call of the function, with a graph that ends at leaves of its own.
struct Pass {
  std::vector<Tensor> leaves;             // the inputs as the function sees them
  std::vector<Tensor> results;            // all of the function's results ...
  std::vector<std::size_t> with_history;  // ... and the positions of those that require grad
  CutGraph graph;                         // one root for each of these
};

Pass call(const detail::CheckpointFunction& function, const std::vector<Tensor>& inputs) {
  const EnableGradGuard recording;
  Pass pass;
  for (const Tensor& input : inputs) {
    pass.leaves.push_back(input.defined() ? raw::alias(input) : input);
    if (input.defined() && input.requires_grad()) pass.leaves.back().requires_grad_();
  }
  const std::uint64_t before = newest_sequence();
  pass.results = function(pass.leaves);
  std::vector<Tensor> roots;
  for (std::size_t i = 0; i < pass.results.size(); ++i) {
    if (!pass.results[i].defined() || !pass.results[i].requires_grad()) continue;
    pass.with_history.push_back(i);
    roots.push_back(pass.results[i]);
  }
  pass.graph = cut_graph(roots, before, pass.leaves);
  return pass;
}

// Edges: the inputs, then what the function has captured.
class CheckpointNode final : public Node {
 public:
  CheckpointNode(detail::CheckpointFunction function, const std::vector<Tensor>& inputs, const Pass& pass,
                 std::vector<random::Draw> draws, std::shared_ptr<const random::SliceContext> slices)
      : Node("checkpoint"), function_(std::move(function)), draws_(std::move(draws)), autocast_(autocast_dtype()),
        slices_(std::move(slices)) {
    if (const AttentionContext* const context = attention_context()) attention_ = context->shared_from_this();
    for (const Tensor& input : inputs) {
      detail::add_edge(*this, input);
      inputs_.emplace_back(input);
    }
    for (const Cut& cut : pass.graph.cuts) {
      edges.push_back(cut.outside);
      captured_.emplace_back(cut.outside.leaf);
    }
  }

  Gradients run(Tensors& grads, const Needs& needs) override {
    LOCKSTEP_CHECK(!grad_mode(), "second derivatives are not supported; call the function without checkpoint");
    LOCKSTEP_CHECK(!needs.is_split(),
                   "the schedule zb1p runs this backward in two parts, and would recompute the function twice; use "
                   "1f1b, or call the function without checkpoint");
    Pass pass = repeat();
    std::vector<Tensor> roots, gradients, wanted;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      roots.push_back(pass.graph.roots[i]);
      gradients.push_back(std::move(grads[i]));
    }
    std::vector<std::size_t> places;
    const auto want = [&](std::size_t edge, const Tensor& leaf) {
      if (!edges[edge].wanted() || !needs[edge]) return;
      wanted.push_back(leaf);
      places.push_back(edge);
    };
    for (std::size_t i = 0; i < pass.leaves.size(); ++i) want(i, pass.leaves[i]);
    for (std::size_t i = 0; i < captured_.size(); ++i) want(inputs_.size() + i, pass.graph.cuts[i].inside);
    pass.results.clear();
    std::vector<Tensor> found = run_repeated({.roots = roots, .gradients = gradients, .inputs = wanted});
    Gradients out;
    out.resize(edges.size());
    for (std::size_t i = 0; i < found.size(); ++i) out[places[i]] = std::move(found[i]);
    return out;
  }
  void release() override {
    function_ = {};
    inputs_.clear();
    captured_.clear();
    draws_.clear();
    attention_.reset();
    slices_.reset();
  }
  bool released() const override { return !function_; }

 private:
  // The operations of a module that checkpoint calls are recorded outside of those around it.
  std::vector<Tensor> run_repeated(const BackwardRequest& request) const {
    try {
      return run_backward(request);
    } catch (Error& error) {
      if (checked_module && !checked_module->empty()) error.add_context("called in module " + *checked_module);
      throw;
    }
  }
  Pass repeat() const {
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor& input = *inputs_[i];
      const bool was_frozen = input.defined() && edges[i].wanted() && !input.requires_grad();  // since forward
      inputs.push_back(was_frozen ? raw::alias(input).requires_grad_() : input);
    }
    const AutocastGuard autocast(autocast_);
    const AnomalyModeGuard anomaly(is_checked(*this));
    const AttentionContextGuard attention(attention_.get());
    const std::shared_ptr<random::SliceContext> context = slices_ ? slices_->fresh() : nullptr;
    const random::SliceContextGuard slices(context.get());
    const random::DrawFrame frame(nullptr, &draws_);
    Pass pass = call(function_, inputs);
    LOCKSTEP_CHECK(frame.next == draws_.size(),
                   "the function drew random numbers {} times in forward, {} times when repeated; make the function "
                   "deterministic, and do not call train() or eval() between forward and backward",
                   draws_.size(), frame.next);
    LOCKSTEP_CHECK(pass.graph.cuts.size() == captured_.size(),
                   "the function used {} parameters and other tensors that require grad in forward, {} when repeated; "
                   "make the function deterministic",
                   captured_.size(), pass.graph.cuts.size());
    for (std::size_t i = 0; i < captured_.size(); ++i) {  // reading captured_ throws if it was changed in place
      LOCKSTEP_CHECK((*captured_[i]).ref() == pass.graph.cuts[i].outside.leaf.ref(),
                     "the function used another parameter in forward than when repeated; make the function "
                     "deterministic");
    }
    LOCKSTEP_CHECK(
        pass.with_history.size() == outputs.size(),
        "{} results of the function required grad in forward, {} when repeated; make the function deterministic",
        outputs.size(), pass.with_history.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor& root = pass.graph.roots[i];
      LOCKSTEP_CHECK(
          root.shape() == outputs[i].shape && root.dtype() == outputs[i].dtype,
          "a result of the function was {} {} in forward and is {} {} when repeated; make the function deterministic",
          outputs[i].shape.to_string(), lockstep::name(outputs[i].dtype), root.shape().to_string(),
          lockstep::name(root.dtype()));
    }
    return pass;
  }

  detail::CheckpointFunction function_;
  std::vector<Saved> inputs_, captured_;
  std::vector<random::Draw> draws_;
  // The modes of the first run.
  std::optional<DType> autocast_;
  std::shared_ptr<const AttentionContext> attention_;
  std::shared_ptr<const random::SliceContext> slices_;  // as it was when the function began
};

}  // namespace

bool is_recomputing() { return random::is_repeating(); }

std::vector<Tensor> detail::checkpoint(CheckpointFunction function, const std::vector<Tensor>& inputs) {
  if (!grad_mode()) return function(inputs);
  std::vector<random::Draw> draws;
  Pass pass;
  random::SliceContext* const around = random::slice_context();
  // Backward would find the parameters, and not the slice's copies of them.
  LOCKSTEP_CHECK(
      !around || !around->is_in_slice,
      "checkpoint: runs in a SequenceParallel module with parameters, which runs once for each slice of this "
      "rank; call checkpoint around the module, as checkpoint(module, x), or give a module around it the "
      "style Recompute");
  const std::shared_ptr<random::SliceContext> start = around ? around->fresh() : nullptr,
                                              inside = around ? around->fresh() : nullptr;
  {
    const random::DrawFrame frame(&draws, nullptr);
    const random::SliceContextGuard slices(inside.get());
    pass = call(function, inputs);
  }
  if (around) around->continue_from(*inside);
  for (Tensor& result : pass.results) {
    if (!result.defined()) continue;
    LOCKSTEP_CHECK(
        draws.empty() || !capture::is_active(result.device()),
        "checkpoint: the function draws random numbers, and a CUDA graph cannot repeat them; set dropout to 0, "
        "or call the function without checkpoint");
    result = raw::alias(result);
  }
  if (pass.with_history.empty()) return std::move(pass.results);
  auto node = Ref<Node>::adopt(new CheckpointNode(std::move(function), inputs, pass, std::move(draws), start));
  std::vector<Tensor> recorded;
  for (const std::size_t i : pass.with_history) recorded.push_back(pass.results[i]);
  attach(std::move(node), recorded, false);
  for (std::size_t i = 0; i < recorded.size(); ++i) pass.results[pass.with_history[i]] = recorded[i];
  return std::move(pass.results);
}

}  // namespace lockstep::autograd
