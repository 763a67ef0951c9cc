#include "lockstep/parallel/data_parallel.h"

#include <algorithm>
#include <mutex>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/parallel/replicas.h"
#include "lockstep/parallel/shard_buffers.h"
#include "lockstep/parallel/shard_rows.h"
#include "lockstep/parallel/standing_gradients.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/combine.h"
#include "lockstep/tensor/ops.h"
#include "lockstep/tensor/random.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {
namespace {

std::int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<std::int64_t>(item_size(t.dtype())); }

// The books, which backward writes as well: graphs may outlive the DataParallel they came from.
struct Books {
  std::mutex mutex;
  TrafficBook book;
  void add(int from, int to, Phase phase, std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    if (from != to) book.add(from, to, phase, bytes);
  }
};

// scale times the canonical sum of the replicas' gradients, on the first one's device; undefined ones keep their place in
// the order, and count for nothing. Reading another device's memory is the transfer.
Tensor sum_gradients(std::vector<Tensor> gradients, Device device, Tensor out, double scale, Books& books) {
  bool all = true;
  Tensor like;
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    all = all && gradients[r].defined();
    if (!gradients[r].defined()) continue;
    like = gradients[r] = raw::contiguous(gradients[r]);
    books.add(static_cast<int>(r), 0, Phase::kGradients, bytes_of(like));
  }
  if (!like.defined()) return {};
  if (!out.defined()) out = raw::empty(like.shape(), {.dtype = like.dtype(), .device = device});
  while (!all && gradients.size() > 1) {  // level by level, leaving holes where they are
    for (std::size_t i = 0; i < gradients.size(); i += 2) {
      Tensor& a = gradients[i];
      const Tensor b = i + 1 < gradients.size() ? gradients[i + 1] : Tensor();
      if (a.defined() && b.defined())
        a = raw::add(raw::to(a, device), raw::to(b, device));
      else if (b.defined())
        a = b;
      gradients[i / 2] = a;
    }
    gradients.resize((gradients.size() + 1) / 2);
  }
  std::vector<const void*> inputs;
  for (const Tensor& gradient : gradients) inputs.push_back(gradient.raw_data());
  void* const target = out.raw_data();
  raw::combine({.inputs = inputs, .outputs = {&target, 1}, .dtype = out.dtype(), .scale = scale}, 0, out.numel());
  return out;
}

}  // namespace

struct DataParallel::State {
  State(nn::Module& module, std::vector<Device> devices, const DataParallelOptions& options)
      : module(module), options(options), replicas(module, std::move(devices)), buffers(module) {}

  std::vector<nn::ReplicaView> leaf_views(int count);
  std::vector<nn::ReplicaView> recorded_views(int count);
  Batch send_rows(const Batch& batch, RowRange rows, int replica);
  Tensor gather(const std::vector<Tensor>& outputs);

  nn::Module& module;
  DataParallelOptions options;
  Replicas replicas;
  ShardBuffers buffers;
  std::shared_ptr<Books> books = std::make_shared<Books>();
};

DataParallel::DataParallel(nn::Module& module, std::vector<Device> devices, const DataParallelOptions& options) {
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "DataParallel: it cannot be made inside another DataParallel's replica");
  state_ = std::make_unique<State>(module, std::move(devices), options);
}
DataParallel::~DataParallel() = default;

std::vector<nn::Parameter> DataParallel::parameters() const { return state_->module.parameters(); }
TrafficBook& DataParallel::traffic() { return state_->books->book; }

// Parameters stand for the replicas' own leaves, whose gradients stay apart.
std::vector<nn::ReplicaView> DataParallel::State::leaf_views(int count) {
  std::vector<nn::ReplicaView> views(static_cast<std::size_t>(count));
  for (int r = 1; r < count; ++r) {
    books->add(0, r, Phase::kParameters, replicas.refresh(r));
    for (std::size_t p = 0; p < replicas.parameters().size(); ++p) {
      const Tensor& leaf = replicas.leaf(r, p);
      leaf.set_grad(Tensor());
      views[static_cast<std::size_t>(r)].set(replicas.parameters()[p].id(), leaf);
    }
    if (!buffers.empty()) buffers.enter(views[static_cast<std::size_t>(r)], replicas.device(r));
  }
  return views;
}

// Parameters stand for results of an operation on the master: backward through it adds up the replicas' gradients.
std::vector<nn::ReplicaView> DataParallel::State::recorded_views(int count) {
  std::vector<nn::ReplicaView> views = leaf_views(count);
  for (std::size_t p = 0; p < replicas.parameters().size(); ++p) {
    const nn::Parameter& parameter = replicas.parameters()[p];
    if (!parameter.master().requires_grad()) continue;
    std::vector<Tensor> outs;
    for (int r = 0; r < count; ++r) outs.push_back(raw::alias(replicas.leaf(r, p)));
    outs = autograd::record_all(
        "replicate", std::move(outs), {parameter.master()},
        [books = books, device = replicas.device(0)](autograd::Tensors& grads, const autograd::Needs& needs) {
          LOCKSTEP_CHECK(!autograd::grad_mode(), "second derivatives do not go through DataParallel; use one device");
          return autograd::Gradients{sum_gradients({grads.begin(), grads.end()}, device, needs.home(0), 1, *books)};
        });
    for (int r = 0; r < count; ++r)
      views[static_cast<std::size_t>(r)].set(parameter.id(), outs[static_cast<std::size_t>(r)]);
  }
  return views;
}

Batch DataParallel::State::send_rows(const Batch& batch, RowRange rows, int replica) {
  Batch shard = narrow_rows(batch, rows);
  for (Tensor& each : shard) {
    if (each.device() == replicas.device(replica)) continue;
    books->add(0, replica, Phase::kInputs, bytes_of(each));
    each = each.to(replicas.device(replica));
  }
  return shard;
}

// The replicas' outputs one after another, on the output device.
Tensor DataParallel::State::gather(const std::vector<Tensor>& outputs) {
  const Device target = options.output_device.value_or(replicas.device(0));
  std::vector<Tensor> there;
  std::vector<std::int64_t> rows;
  std::vector<Device> devices;
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    LOCKSTEP_CHECK(outputs[r].defined() && outputs[r].dim() > 0,
                   "DataParallel: replica {} returned {}, expected a tensor with one row for each example", r,
                   outputs[r].defined() ? lockstep::describe(outputs[r]) : "nothing");
    books->add(static_cast<int>(r), 0, Phase::kOutputs, bytes_of(outputs[r]));
    there.push_back(raw::to(outputs[r], target));
    rows.push_back(outputs[r].size(0));
    devices.push_back(outputs[r].device());
  }
  return autograd::record("gather", raw::cat(there, 0), outputs,
                          [rows, devices, books = books](const Tensor& grad, const autograd::Needs& needs) {
                            autograd::Gradients gradients;
                            std::int64_t at = 0;
                            for (std::size_t r = 0; r < rows.size(); at += rows[r], ++r) {
                              gradients.push_back(needs[r] ? grad.narrow(0, at, rows[r]).to(devices[r]) : Tensor());
                              if (needs[r])
                                books->add(0, static_cast<int>(r), Phase::kLossGradient, bytes_of(gradients[r]));
                            }
                            return gradients;
                          });
}

Tensor DataParallel::operator()(const Tensor& x) {
  State& state = *state_;
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr, "DataParallel: called inside another DataParallel's replica");
  const std::int64_t rows = rows_of("DataParallel", {x});
  const int devices = state.replicas.size();
  const int running = static_cast<int>(std::clamp<std::int64_t>(rows, 1, devices));
  state.books->book.begin_step();
  state.buffers.begin_step(running > 1);
  const std::vector<nn::ReplicaView> views = state.recorded_views(running);
  std::vector<Tensor> outputs(static_cast<std::size_t>(running));
  state.replicas.run(views, [&](int r) {
    const Batch shard = state.send_rows({x}, shard_rows(rows, r, devices), r);
    outputs[static_cast<std::size_t>(r)] = state.module(shard[0]);
  });
  return state.gather(outputs);
}

Tensor DataParallel::run(const Batch& batch, ShardLoss loss_fn) {
  State& state = *state_;
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr, "DataParallel: called inside another DataParallel's replica");
  const std::int64_t rows = rows_of("DataParallel", batch);
  const int devices = state.replicas.size();
  const int running = static_cast<int>(std::min<std::int64_t>(rows, devices));
  LOCKSTEP_CHECK(running > 0, "DataParallel: the batch has no rows");
  const bool weighted = state.options.weighting == Weighting::kSamples;

  const TrainedParameters trained(state.module);
  StandingGradients standing(trained.list());
  state.books->book.begin_step();
  state.buffers.begin_step(running > 1);
  const std::vector<nn::ReplicaView> views = state.leaf_views(running);
  std::vector<Tensor> losses(static_cast<std::size_t>(running));
  state.replicas.run(views, [&](int r) {
    const RowRange range = shard_rows(rows, r, devices);
    const Tensor loss = loss_fn(state.send_rows(batch, range, r));
    const std::int64_t weight = weighted ? range.count : 1;
    losses[static_cast<std::size_t>(r)] = weighted_loss("DataParallel", loss, weight);
    weighted_backward(loss, weight);
  });
  const StepScale scale = weighted ? StepScale(rows) : StepScale(devices, running);
  for (std::size_t p = 0; p < state.replicas.parameters().size(); ++p) {
    const Tensor& master = state.replicas.parameters()[p].master();
    if (!master.requires_grad()) continue;
    std::vector<Tensor> gradients;
    for (int r = 0; r < running; ++r) gradients.push_back(state.replicas.leaf(r, p).grad());
    const Tensor sum = sum_gradients(std::move(gradients), master.device(), Tensor(), scale.first, *state.books);
    scale_gradient(sum, scale.second);
    master.set_grad(sum);
  }
  standing.add_back();
  for (int r = 1; r < running; ++r)
    state.books->add(r, 0, Phase::kOutputs, bytes_of(losses[static_cast<std::size_t>(r)]));
  return combine_losses(losses, scale);
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
