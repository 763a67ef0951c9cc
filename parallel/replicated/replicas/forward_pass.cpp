#include "lockstep/parallel/replicated/replicas/forward_pass_internal.h"

#include <algorithm>

#include "lockstep/autograd/engine_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/replicated/replicas/gradient_sums_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

class ForwardNode final : public autograd::Node {
 public:
  explicit ForwardNode(std::unique_ptr<ForwardPass> pass) : Node("data_parallel"), pass_(std::move(pass)) {}
  autograd::Gradients run(autograd::Tensors& grads, const autograd::Needs& needs) override {
    return pass_->backward(grads[0], needs);
  }
  void release() override { pass_.reset(); }
  bool released() const override { return !pass_; }

 private:
  std::unique_ptr<ForwardPass> pass_;
};

}  // namespace

ForwardPass::ForwardPass(const Replicas& replicas, const Batch& inputs, int running,
                         std::shared_ptr<DeviceTraffic> traffic)
    : devices_(replicas.devices(running)), workers_(replicas.workers()), traffic_(std::move(traffic)),
      recording_(autograd::grad_mode()), views_(devices_.size()), parts_(devices_.size()) {
  if (!recording_) return;
  trained_ = replicas.trained();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    inputs_.push_back(i);
    input_devices_.push_back(inputs[i].device());
  }
}

void ForwardPass::begin(int replica, std::vector<Tensor> leaves, Batch& rows) {
  Part& part = parts_[static_cast<std::size_t>(replica)];
  part.leaves = std::move(leaves);
  for (const std::size_t i : inputs_) part.leaves.push_back(rows[i] = raw::alias(rows[i]).requires_grad_());
  part.before = autograd::newest_sequence();
}

void ForwardPass::end(int replica, const Tensor& output) {
  Part& part = parts_[static_cast<std::size_t>(replica)];
  part.rows = output.size(0);
  if (!recording_ || !output.requires_grad()) return;
  part.graph = autograd::cut_graph({&output, 1}, part.before, part.leaves);
  for (const autograd::Cut& cut : part.graph.cuts) part.leaves.push_back(cut.inside);
}

Tensor ForwardPass::record(std::unique_ptr<ForwardPass> pass, const Batch& inputs, Tensor gathered) {
  ForwardPass& own = *pass;
  if (std::ranges::none_of(own.parts_, &Part::has_graph)) return gathered;
  auto node = Ref<autograd::Node>::adopt(new ForwardNode(std::move(pass)));
  for (const Tensor& parameter : own.trained_) autograd::detail::add_edge(*node, parameter);
  for (const std::size_t i : own.inputs_) autograd::detail::add_edge(*node, inputs[i]);
  std::int64_t row = 0;
  for (Part& part : own.parts_) {
    part.first_row = std::exchange(row, row + part.rows);
    part.first_captured = node->edges.size();
    for (autograd::Cut& cut : part.graph.cuts) node->edges.push_back(std::move(cut.outside));
    part.graph.cuts.clear();
  }
  own.target_ = gathered.device();
  autograd::detail::attach(std::move(node), {&gathered, 1}, false);
  return gathered;
}

// The input of the operation that a replica's leaf represents.
std::size_t ForwardPass::input_of(const Part& part, std::size_t leaf) const {
  const std::size_t shared = trained_.size() + inputs_.size();
  return leaf < shared ? leaf : part.first_captured + leaf - shared;
}

// Called on a replica's thread. Returns the gradients of its leaves.
std::vector<Tensor> ForwardPass::backward(int replica, const Tensor& grad, const autograd::Needs& needs) {
  const Part& part = parts_[static_cast<std::size_t>(replica)];
  std::vector<Tensor> gradients(part.leaves.size()), wanted;
  std::vector<std::size_t> leaves;
  for (std::size_t i = 0; i < part.leaves.size(); ++i) {
    if (!needs[input_of(part, i)]) continue;
    wanted.push_back(part.leaves[i]);
    leaves.push_back(i);
  }
  if (!part.has_graph() || wanted.empty()) return gradients;
  const Tensor rows = raw::slice(grad, 0, part.first_row, part.first_row + part.rows, 1);
  const TraceTime begin = TraceTime::now();
  const Tensor seed = raw::to(rows, part.graph.roots[0].device());
  if (seed.device() != target_)
    traffic_->add(replica, traffic_->position(target_), replica, Phase::kLossGradient, bytes_of(seed), begin);
  std::vector<Tensor> found = autograd::run_backward(
      {.roots = part.graph.roots, .gradients = {&seed, 1}, .retain_graph = needs.retains_graph(), .inputs = wanted});
  for (std::size_t k = 0; k < leaves.size(); ++k) gradients[leaves[k]] = std::move(found[k]);
  return gradients;
}

// Concatenates the replicas' gradients of an input; zeros for a replica that did not use the input.
Tensor ForwardPass::join_rows(std::vector<Tensor> gradients, std::size_t leaf, Device device) {
  if (std::ranges::none_of(gradients, &Tensor::defined)) return {};
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    Tensor& rows = gradients[r];
    const Tensor& like = parts_[r].leaves[leaf];
    if (!rows.defined()) {
      rows = raw::zeros(like.shape(), {.dtype = like.dtype(), .device = device});
    } else if (rows.device() != device) {
      const TraceTime begin = TraceTime::now();
      rows = raw::to(rows, device);
      traffic_->add(0, static_cast<int>(r), traffic_->position(device), Phase::kGradients, bytes_of(rows), begin);
    }
  }
  return raw::cat(gradients, 0);
}

autograd::Gradients ForwardPass::backward(const Tensor& grad, const autograd::Needs& needs) {
  LOCKSTEP_CHECK(!autograd::grad_mode(), "DataParallel: second derivatives are not supported; use one device");
  const std::shared_ptr<ReplicaWorkers> workers = workers_.lock();
  std::vector<std::vector<Tensor>> found(parts_.size());
  run_replicas(workers.get(), devices_, [&](int r) {
    const nn::ReplicaViewGuard view(&views_[static_cast<std::size_t>(r)]);
    found[static_cast<std::size_t>(r)] = backward(r, grad, needs);
  });
  const auto of_all = [&found](std::size_t leaf) {
    std::vector<Tensor> gradients;
    for (std::vector<Tensor>& each : found) gradients.push_back(std::move(each[leaf]));
    return gradients;
  };
  GradientSums sums(devices_[0], StepScale(1, 1), *traffic_);
  for (std::size_t i = 0; i < trained_.size(); ++i) sums.add(of_all(i), needs, i);
  autograd::Gradients gradients = sums.run(workers.get(), devices_);
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    gradients.push_back(join_rows(of_all(trained_.size() + i), trained_.size() + i, input_devices_[i]));
  for (std::size_t r = 0; r < parts_.size(); ++r) {
    for (std::size_t i = trained_.size() + inputs_.size(); i < found[r].size(); ++i)
      gradients.push_back(std::move(found[r][i]));
  }
  return gradients;
}

}  // namespace lockstep::parallel
