#include "lockstep/parallel/replicated/data_parallel.h"

#include <algorithm>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/replicated/replicas/forward_pass_internal.h"
#include "lockstep/parallel/replicated/replicas/gradient_sums_internal.h"
#include "lockstep/parallel/step/backward_hooks_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/parallel/step/recorder.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"
#include "lockstep/parallel/step/step_watchers_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::parallel {

struct DataParallel::State {
  State(nn::Module& module, std::vector<Device> devices, const DataParallelOptions& options)
      : module(module), in_training_mode(module), options(options), replicas(module, devices), buffers(module),
        traffic(std::make_shared<DeviceTraffic>(std::move(devices))),
        backwards([this](autograd::Run& run) { begin_backward(run); }),
        parts(static_cast<std::size_t>(replicas.size())) {}

  void begin_run(int running);
  void begin_backward(autograd::Run& run);
  void end_step() {
    if (local_depth == 0) traffic->close_step();
  }
  void enter(int replica, nn::ReplicaView& view, bool recording, std::vector<Tensor>& leaves);
  Batch send_rows(const Batch& batch, RowRange rows, int replica);
  Tensor fetch(const Tensor& output, int replica);
  Tensor forward(const Batch& inputs, FunctionRef<Tensor(const Batch& rows)> forward);
  MicroBatchPlan plan(const Batch& batch) const;
  void run(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn);
  Tensor mean_loss(const StepScale& scale);
  void add_gradients(const StepScale& scale);

  // A replica's memory of a step of run(). Its thread allocates and frees it, in the next run: a block that one thread
  // allocates and another frees costs both of them cache misses. Large gradients do not wait for that.
  struct alignas(64) Part {
    nn::ReplicaView view;
    std::vector<Tensor> leaves;     // of the trained parameters
    std::vector<Tensor> gradients;  // of the leaves
    std::uint64_t newest = 0;       // operation before the forward
  };
  void free_large_parts();

  nn::Module& module;
  nn::InTrainingMode in_training_mode;
  DataParallelOptions options;
  Replicas replicas;
  MicroBatchBuffers buffers;
  std::shared_ptr<DeviceTraffic> traffic;
  StepWatchers watchers;
  BackwardHooks backwards;
  int local_depth = 0;         // > 0: in no_sync
  std::vector<Part> parts;     // by replica
  std::vector<Tensor> losses;  // by replica, of the last run()
};

namespace {

// All devices of the kind that the module is on; of CPU devices, which are virtual, the module's own.
std::vector<Device> all_devices(const nn::Module& module) {
  const std::vector<nn::Parameter> parameters = module.parameters();
  const Device first = parameters.empty() ? Device() : parameters[0].master().device();
  if (first.type() == DeviceType::kDeferred) throw_deferred();
  if (first.is_cpu()) return {first};
  std::vector<Device> devices;
  for (int index = 0; index < device_count(first.type()); ++index) devices.emplace_back(first.type(), index);
  return devices;
}

}  // namespace

DataParallel::DataParallel(nn::Module& module) : DataParallel(module, all_devices(module)) {}

DataParallel::DataParallel(nn::Module& module, std::vector<Device> devices, const DataParallelOptions& options) {
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "DataParallel: cannot be constructed inside a replica of another DataParallel; construct it outside");
  require_runner_ranks("DataParallel", module, nullptr);
  LOCKSTEP_CHECK(
      !stage_runner(module),
      "DataParallel: the model is in the stages of a Pipeline, which its replicas could not run; train it with "
      "the Pipeline, or with DistributedDataParallel");
  share_added_values("DataParallel", module);
  state_ = std::make_unique<State>(module, std::move(devices), options);
  recorder_ = Recorder::from_environment(*this);
}
DataParallel::~DataParallel() = default;

nn::Module& DataParallel::module() const { return state_->module; }
NoSync DataParallel::no_sync() { return NoSync(&state_->local_depth); }
StepWatchers& DataParallel::watchers() { return state_->watchers; }
TrainingPlan DataParallel::plan() const { return replicated_plan(state_->module, 1); }
const TrafficStats& DataParallel::traffic() { return state_->traffic->stats(); }

void DataParallel::State::begin_run(int running) {
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "DataParallel: cannot run inside a replica or a later micro-batch of another mode; "
                 "call the module itself there");
  LOCKSTEP_CHECK(!random::has_draw_frame(),
                 "DataParallel: cannot run inside checkpoint, which repeats the random numbers of one thread; call "
                 "checkpoint inside the module");
  require_runner_ranks("DataParallel", module, nullptr);
  buffers.begin_step(running);
  replicas.begin_run();
}

// The user's own.
void DataParallel::State::begin_backward(autograd::Run& run) {
  if (!run.accumulates()) return;
  traffic->open_step();
  run.at_end([this] { end_step(); });
  run.at_error([of_devices = traffic](const std::exception&) { of_devices->close_step(); });
}

// Called on a replica's thread. Enters parameters and buffers in `view` and appends the leaves of the trained ones.
void DataParallel::State::enter(int replica, nn::ReplicaView& view, bool recording, std::vector<Tensor>& leaves) {
  TraceTime begin = TraceTime::now();
  traffic->add(replica, 0, replica, Phase::kParameters, replicas.enter(replica, view, recording, leaves), begin);
  begin = TraceTime::now();
  if (replica > 0)
    traffic->add(replica, 0, replica, Phase::kBuffers, buffers.enter(view, replicas.device(replica)), begin);
  buffers.enter_updates(replica, view, replicas.device(replica));
}

Batch DataParallel::State::send_rows(const Batch& batch, RowRange rows, int replica) {
  Batch micro_batch = narrow_rows(batch, rows);
  for (Tensor& each : micro_batch) {
    if (each.device() == replicas.device(replica)) continue;
    const int from = traffic->position(each.device());
    const TraceTime begin = TraceTime::now();
    each = raw::to(each, replicas.device(replica));
    traffic->add(replica, from, replica, Phase::kInputs, bytes_of(each), begin);
  }
  return micro_batch;
}

// Copies a replica's output to the output device.
Tensor DataParallel::State::fetch(const Tensor& output, int replica) {
  const Device target = options.output_device.value_or(replicas.device(0));
  const TraceTime begin = TraceTime::now();
  Tensor fetched = raw::to(output, target);
  if (output.device() != target)
    traffic->add(replica, replica, traffic->position(target), Phase::kOutputs, bytes_of(output), begin);
  return fetched;
}

Tensor DataParallel::State::forward(const Batch& inputs, FunctionRef<Tensor(const Batch& rows)> forward) {
  const std::int64_t rows = rows_of("DataParallel", inputs);
  const int devices = replicas.size(), running = static_cast<int>(std::clamp<std::int64_t>(rows, 1, devices));
  begin_run(running);
  if (autograd::grad_mode()) {
    traffic->open_step();
    watchers.begin_step({.is_of_user = true});
  }
  const OnError close([this] { traffic->close_step(); });
  auto pass = std::make_unique<ForwardPass>(replicas, inputs, running, traffic);
  std::vector<Tensor> outputs(static_cast<std::size_t>(running));
  const auto view = [&](int r) { return &pass->views()[static_cast<std::size_t>(r)]; };
  replicas.run(running, view, [&](int r) {
    std::vector<Tensor> leaves;
    enter(r, *view(r), pass->recording(), leaves);
    Batch micro_batch = send_rows(inputs, micro_batch_rows(rows, r, devices), r);
    pass->begin(r, std::move(leaves), micro_batch);
    const Tensor output = forward(micro_batch);
    LOCKSTEP_CHECK(output.defined() && output.dim() > 0,
                   "forward returned {}, expected a tensor whose first dimension is the number of samples",
                   output.defined() ? lockstep::describe(output) : "nothing");
    pass->end(r, output);
    outputs[static_cast<std::size_t>(r)] = fetch(output, r);
  });
  buffers.apply_updates();
  return backwards.add(ForwardPass::record(std::move(pass), inputs, raw::cat(outputs, 0)));
}

Tensor DataParallel::operator()(const Tensor& x) {
  return state_->forward({x}, [this](const Batch& rows) { return state_->module(rows[0]); });
}

Tensor DataParallel::operator()(const std::vector<Tensor>& inputs) {
  return state_->forward(inputs, [this](const Batch& rows) { return state_->module(rows); });
}

// Runs one micro-batch on each replica, all at the same time.
class DataParallel::OnReplicas final : public MicroBatchExecutor {
 public:
  OnReplicas(State& state, bool recording) : state_(state), recording_(recording) {}

  void for_each(int running, FunctionRef<void(int replica)> body) override {
    state_.begin_run(running);
    state_.replicas.run(
        running, [&](int replica) { return &part(replica).view; },
        [&](int replica) {
          State::Part& own = part(replica);
          own.leaves.clear();
          own.gradients.clear();
          state_.enter(replica, own.view, recording_, own.leaves);
          own.newest = autograd::newest_sequence();
          body(replica);
        });
  }
  Tensor forward(int replica, const Batch& batch, RowRange samples, MicroBatchLoss loss_fn) override {
    return loss_fn(state_.send_rows(batch, samples, replica));
  }
  void backward(int replica, const Tensor& loss, std::int64_t weight) override {
    State::Part& own = part(replica);
    const autograd::CutGraph graph = autograd::cut_graph({&loss, 1}, own.newest, own.leaves);
    LOCKSTEP_CHECK(graph.cuts.empty(),
                   "the loss depends on {}, which requires grad and is not a parameter of the module; "
                   "register it (add_parameter), or detach() it",
                   lockstep::describe(graph.cuts[0].inside));
    weighted_backward(graph.roots[0], weight);
    for (const Tensor& leaf : own.leaves) own.gradients.push_back(leaf.grad());
  }

 private:
  State::Part& part(int replica) { return state_.parts[static_cast<std::size_t>(replica)]; }

  State& state_;
  bool recording_;
};

MicroBatchPlan DataParallel::State::plan(const Batch& batch) const {
  return {.op = "DataParallel",
          .samples = rows_of("DataParallel", batch),
          .micro_batches = replicas.size(),
          .weighting = options.weighting};
}

Tensor DataParallel::State::mean_loss(const StepScale& scale) {
  const TraceTime begin = TraceTime::now();
  const Tensor loss = combine_losses(losses, scale);
  for (std::size_t r = 1; r < losses.size(); ++r)
    traffic->add(0, static_cast<int>(r), 0, Phase::kOutputs, bytes_of(losses[r]), begin);
  return loss;
}

void DataParallel::State::run(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn) {
  OnReplicas executor(*this, /*recording=*/!plan.evaluates);
  MicroBatchStep(plan, batch, loss_fn, executor, losses).run();
  buffers.apply_updates();
}

Tensor DataParallel::run(const Batch& batch, MicroBatchLoss loss_fn) {
  State& state = *state_;
  const MicroBatchPlan plan = state.plan(batch);
  const StepScale scale = plan.scale();
  state.traffic->open_step();
  const OnError close([&] { state.traffic->close_step(); });
  state.watchers.begin_step({});
  state.run(plan, batch, loss_fn);
  state.add_gradients(scale);
  state.watchers.gradients_ready();
  const Tensor loss = state.mean_loss(scale);
  state.end_step();
  return loss;
}

Tensor DataParallel::run_evaluation(const Batch& batch, MicroBatchLoss loss_fn) {
  MicroBatchPlan plan = state_->plan(batch);
  plan.evaluates = true;
  const StepScale scale = plan.scale();
  state_->run(plan, batch, loss_fn);
  return state_->mean_loss(scale);
}

// Adds the sums over the replicas to the parameters' gradients by a backward of one operation, so that bucket views
// are used and hooks run as in any other backward.
void DataParallel::State::add_gradients(const StepScale& scale) {
  const EnableGradGuard recording;
  const std::vector<Tensor>& trained = replicas.trained();
  const auto running = static_cast<int>(losses.size());
  const auto sum = [&](const Tensor&, const autograd::Needs& needs) {
    GradientSums sums(replicas.device(0), scale, *traffic);
    for (std::size_t p = 0; p < trained.size(); ++p) {
      std::vector<Tensor> of_all;
      for (int r = 0; r < running; ++r) of_all.push_back(parts[static_cast<std::size_t>(r)].gradients[p]);
      sums.add(std::move(of_all), needs, p);
    }
    return sums.run(replicas.workers().get(), replicas.devices(running));
  };
  const Tensor step = autograd::record("data_parallel", raw::zeros(Shape()), trained, sum);
  if (step.requires_grad()) step.backward();  // false if all parameters have been frozen since the forward
  free_large_parts();
}

void DataParallel::State::free_large_parts() {
  constexpr std::int64_t kLarge = 1 << 16;  // bytes
  std::int64_t bytes = 0;
  for (const Tensor& each : replicas.trained()) bytes += bytes_of(each);
  if (bytes < kLarge) return;
  for (Part& each : parts) each = Part();
}

}  // namespace lockstep::parallel
