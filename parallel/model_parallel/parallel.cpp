#include "lockstep/parallel/model_parallel/parallel.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/ranges.h>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/checkpoint/checkpoint.h"
#include "lockstep/parallel/model_parallel/context_blocks_internal.h"
#include "lockstep/parallel/model_parallel/pipeline_stages_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"
#include "lockstep/parallel/model_parallel/tensor_parallel.h"
#include "lockstep/parallel/replicated/distributed.h"
#include "lockstep/parallel/replicated/gradient_accumulation.h"
#include "lockstep/parallel/sharded/sharded.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/recorder.h"
#include "lockstep/parallel/step/shared_runner_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::string_view kAxes[] = {"pp", "dp", "fsdp", "cp", "tp"};

bool has_axis(const DeviceMesh& mesh, std::string_view name) {
  const std::vector<MeshAxis> axes = mesh.axes();
  return std::ranges::find(axes, name, &MeshAxis::name) != axes.end();
}
// An axis that the mesh lacks has this rank alone.
DeviceMesh axis_of(const DeviceMesh& mesh, const std::string& axis) {
  return has_axis(mesh, axis) ? mesh[axis] : DeviceMesh(nullptr, {{axis, 1}});
}
int ranks_of(const DeviceMesh& mesh, const std::string& axis) { return axis_of(mesh, axis).size(); }

void check_axes(const DeviceMesh& mesh) {
  for (const MeshAxis& axis : mesh.axes())
    LOCKSTEP_CHECK(std::ranges::find(kAxes, axis.name) != std::end(kAxes), "Parallel: axis {} is unknown; axes are {}",
                   axis.name, fmt::join(kAxes, ", "));
  const int dp = ranks_of(mesh, "dp"), fsdp = ranks_of(mesh, "fsdp");
  LOCKSTEP_CHECK(dp == 1 || fsdp == 1,
                 "Parallel: axes dp and fsdp have {} and {} ranks, but sharding within replicas is not built yet; give "
                 "all {} ranks to one of them",
                 dp, fsdp, dp * fsdp);
}

// Whether `ranks` that share the micro-batches have the bits of one rank: each rank's sum must be a node of the tree over
// all pieces.
bool has_same_bits(const Partition& partition, int ranks) {
  const auto is_power = [](int n) { return std::has_single_bit(static_cast<unsigned>(n)); };
  const int all = partition.micro_batches;
  return all % ranks == 0 &&
         (ranks == 1 || (is_power(all / ranks) && (partition.sequence_blocks == 1 || is_power(all))));
}

// The partition with the number of slices that 0 stands for.
Partition on_mesh(Partition partition, const DeviceMesh& mesh) {
  if (partition.tensor_slices == 0) partition.tensor_slices = ranks_of(mesh, "tp");
  return partition;
}

void check_partition(const Partition& partition, const DeviceMesh& mesh, const std::string& data_axis) {
  LOCKSTEP_CHECK(partition.micro_batches >= 1 && partition.tensor_slices >= 1 && partition.sequence_blocks >= 1,
                 "Parallel: {} micro-batches, {} tensor slices, {} sequence blocks; expected 1 or more of each, or 0 "
                 "tensor slices for as many as ranks of tp",
                 partition.micro_batches, partition.tensor_slices, partition.sequence_blocks);
  const int slices = ranks_of(mesh, "tp");
  LOCKSTEP_CHECK(
      partition.tensor_slices > 1 || slices == 1,
      "Parallel: axis tp has {} ranks, but the partition has 1 tensor slice; set .partition.tensor_slices to {}, or to "
      "0 for as many as ranks",
      slices, slices);
  const int blocks = ranks_of(mesh, "cp"), ranks = ranks_of(mesh, data_axis), all = partition.micro_batches;
  LOCKSTEP_CHECK(partition.sequence_blocks == blocks,
                 "Parallel: axis cp has {} rank{}, but the partition has {} sequence block{}; set "
                 ".partition.sequence_blocks to {}",
                 blocks, blocks == 1 ? "" : "s", partition.sequence_blocks, partition.sequence_blocks == 1 ? "" : "s",
                 blocks);
  std::vector<int> possible;
  for (int n = 1; n <= all; ++n) {
    if (has_same_bits(partition, n)) possible.push_back(n);
  }
  const std::string choice =
      possible.size() == 1
          ? fmt::format("{}", possible[0])
          : fmt::format("{} or {}", fmt::join(possible.begin(), possible.end() - 1, ", "), possible.back());
  LOCKSTEP_CHECK(all % ranks == 0,
                 "Parallel: axis {} has {} ranks, which do not divide the partition's {} micro-batches; use {}",
                 data_axis, ranks, all, choice);
  LOCKSTEP_CHECK(
      has_same_bits(partition, ranks),
      "Parallel: axis {} has {} ranks, each with {} of the partition's {} micro-batches, whose sum has other "
      "bits than on one rank; use {}",
      data_axis, ranks, all / ranks, all, choice);
}

PipelineOptions pipeline_options(const ParallelOptions& options, int micro_batches) {
  return {.chain = options.chain,
          .split_before = options.split_before,
          .schedule = options.schedule,
          .micro_batches_per_rank = micro_batches,
          .chunks_per_rank = options.chunks_per_rank,
          .table = options.table};
}

// The modes with a group need a gradient. All ranks of the mesh throw.
void check_trained(const nn::Module& module, const DeviceMesh& mesh, const std::string& data_axis) {
  on_all_ranks(mesh.group().get(), [&] {
    LOCKSTEP_CHECK(
        std::ranges::any_of(module.parameters(), [](const auto& each) { return each.master().requires_grad(); }),
        "Parallel: the stages of rank {} along pp have no parameter that requires grad, but axes {} and cp have {} and "
        "{} ranks, which share gradients; choose other stages with .split_before",
        mesh["pp"].rank(), data_axis, ranks_of(mesh, data_axis), ranks_of(mesh, "cp"));
  });
}

// A mode for the ranks that share the gradients.
using Mode = std::variant<std::unique_ptr<GradientAccumulation>, std::unique_ptr<DistributedDataParallel>,
                          std::unique_ptr<ShardedDataParallel>>;

// The ranks of the axes that share gradients, cp outermost; null: this process alone.
std::shared_ptr<ProcessGroup> gradient_group(const DeviceMesh& mesh, const std::string& data_axis) {
  std::vector<std::string> axes;
  for (const std::string& axis : {std::string("cp"), data_axis}) {
    if (has_axis(mesh, axis)) axes.push_back(axis);
  }
  if (axes.empty() || mesh.size() == 1) return nullptr;
  return axes.size() == 1 ? mesh[axes[0]].group() : mesh.flatten(axes).group();
}

Mode make_mode(nn::Module& module, std::shared_ptr<ProcessGroup> group, int micro_batches, bool is_sharded,
               const ParallelOptions& options) {
  if (!group)
    return std::make_unique<GradientAccumulation>(module, GradientAccumulationOptions{.micro_batches = micro_batches});
  if (!is_sharded)
    return std::make_unique<DistributedDataParallel>(
        module, std::move(group), DistributedDataParallelOptions{.micro_batches_per_rank = micro_batches});
  return std::make_unique<ShardedDataParallel>(
      module, std::move(group),
      ShardedDataParallelOptions{
          .stage = options.stage, .units = options.units, .micro_batches_per_rank = micro_batches});
}

}  // namespace

// Makes a module context-parallel while it exists.
class ContextParallelGuard {
 public:
  ContextParallelGuard(nn::Module& module, const DeviceMesh& axis, const ContextParallelOptions& options)
      : module_(module) {
    context_parallel(module, axis, options);
    runner_ = nn::runners_of(module).back();
  }
  ~ContextParallelGuard() { nn::remove_runner(module_, runner_.get()); }
  ContextParallelGuard(const ContextParallelGuard&) = delete;
  ContextParallelGuard& operator=(const ContextParallelGuard&) = delete;

  // Calls `body` while the module is not context-parallel.
  void without(FunctionRef<void()> body) {
    const Finally again([&, runners = nn::runners_of(module_)] { nn::set_runners(module_, runners); });
    nn::remove_runner(module_, runner_.get());
    body();
  }

 private:
  nn::Module& module_;
  std::shared_ptr<const nn::ModuleRunner> runner_;
};

struct Parallel::State {
  State(nn::Module& module, const DeviceMesh& mesh, const ParallelOptions& options);

  template <class F>
  decltype(auto) with_mode(F f) {
    return std::visit([&](auto& mode) -> decltype(auto) { return f(*mode); }, mode);
  }

  nn::Module& module;
  const Partition partition;
  const DeviceMesh blocks;           // the axis cp
  int first = 0, micro_batches = 0;  // of this rank
  TensorPlan tensor;
  std::string layout;  // for plan()
  std::optional<ContextParallelGuard> context;
  std::shared_ptr<const PipelineRunner> stages;  // null: none
  Mode mode;
};

Parallel::State::State(nn::Module& of, const DeviceMesh& mesh, const ParallelOptions& options)
    : module(of), partition(on_mesh(options.partition, mesh)), blocks(axis_of(mesh, "cp")) {
  check_axes(mesh);
  const bool is_sharded = has_axis(mesh, "fsdp") && ranks_of(mesh, "dp") == 1;
  const std::string data_axis = is_sharded ? "fsdp" : "dp";
  check_partition(partition, mesh, data_axis);
  styled_modules("Parallel", module, options.plan);
  LOCKSTEP_CHECK(options.chunks_per_rank >= 1, "Parallel: .chunks_per_rank is {}, expected 1 or more",
                 options.chunks_per_rank);
  micro_batches = partition.micro_batches / ranks_of(mesh, data_axis);
  const PipelineOptions pipeline = pipeline_options(options, micro_batches);
  const int stage_ranks = ranks_of(mesh, "pp");
  const bool has_stages =
      stage_ranks > 1 || (!options.chain.empty() && shares_parameters(chain_of("Parallel", module, options.chain)));
  if (has_stages) check_stages("Parallel", module, stage_ranks, pipeline);
  first = axis_of(mesh, data_axis).rank() * micro_batches;
  LOCKSTEP_CHECK(runner_groups(module, SharedRunner::Part::kSequence).empty(),
                 "Parallel: the model is context-parallel already; leave context_parallel out");
  tensor = parallelize(module, axis_of(mesh, "tp"),
                       {.tensor_slices = partition.tensor_slices,
                        .sequence_parallel = partition.sequence_parallel,
                        .plan = options.plan});
  if (partition.sequence_blocks > 1)
    context.emplace(module, blocks,
                    ContextParallelOptions{.attention = partition.attention, .gather_keys = options.gather_keys});
  const std::shared_ptr<ProcessGroup> group = gradient_group(mesh, data_axis);
  if (has_stages) stages = cut_into_stages("Parallel", module, axis_of(mesh, "pp"), pipeline);
  if (stage_ranks > 1 && group) check_trained(module, mesh, data_axis);
  mode = make_mode(module, group, micro_batches, is_sharded, options);
  const std::string blocks_text =
      partition.sequence_blocks == 1
          ? "whole"
          : fmt::format("{} sequence blocks, {}", partition.sequence_blocks, name_of(partition.attention));
  layout = fmt::format("micro-batches  {}, of which this rank has {} from {}\nsequence       {}\n",
                       partition.micro_batches, micro_batches, first, blocks_text);
  if (partition.tensor_slices > 1) layout += tensor.to_string();
}

Parallel::Parallel(nn::Module& module, const DeviceMesh& mesh, const ParallelOptions& options)
    : state_(std::make_unique<State>(module, mesh, options)) {}
Parallel::~Parallel() = default;

Tensor Parallel::operator()(const Tensor& x) {
  return state_->with_mode([&](auto& mode) { return mode(x); });
}
Tensor Parallel::operator()(const std::vector<Tensor>& inputs) {
  return state_->with_mode([&](auto& mode) { return mode(inputs); });
}
nn::Module& Parallel::module() const { return state_->module; }
std::shared_ptr<ProcessGroup> Parallel::group() const {
  return state_->with_mode([](auto& mode) { return mode.group(); });
}
std::vector<nn::Parameter> Parallel::parameters() const {
  return state_->with_mode([](auto& mode) { return mode.parameters(); });
}
std::vector<ShardedParameter> Parallel::named_parameters() const {
  return state_->with_mode([](auto& mode) { return mode.named_parameters(); });
}

int Parallel::first_micro_batch() const { return state_->first; }
int Parallel::micro_batches() const { return state_->micro_batches; }
std::vector<Tensor> Parallel::split_sequence(const std::vector<Tensor>& batch) const {
  if (state_->partition.sequence_blocks == 1) return batch;
  return parallel::split_sequence(batch, state_->blocks, state_->partition.attention);
}

double Parallel::clip_grad_norm_(double max_norm) {
  return state_->with_mode([&](auto& mode) { return mode.clip_grad_norm_(max_norm); });
}
void Parallel::gathered(FunctionRef<void()> body) {
  State& state = *state_;
  state.with_mode([&](auto& mode) { mode.gathered([&] { state.context ? state.context->without(body) : body(); }); });
}
NoSync Parallel::no_sync() {
  return state_->with_mode([](auto& mode) { return mode.no_sync(); });
}
void Parallel::request_stop() {
  state_->with_mode([](auto& mode) { mode.request_stop(); });
}
bool Parallel::stop_requested() const {
  return state_->with_mode([](auto& mode) { return mode.stop_requested(); });
}
TrainingStats Parallel::stats() const {
  return state_->with_mode([](auto& mode) { return mode.stats(); });
}
const TrafficStats& Parallel::traffic() {
  return state_->with_mode([](auto& mode) -> const TrafficStats& { return mode.traffic(); });
}
std::string Parallel::plan() const {
  const State& state = *state_;
  return state.layout + (state.stages ? plan_of(*state.stages).to_string() : "") + training_plan().to_string();
}
TrainingPlan Parallel::training_plan() const {
  return state_->with_mode([](auto& mode) { return mode.plan(); });
}

void Parallel::join(FunctionRef<void()> /*body*/, const JoinOptions& /*options*/) {
  throw InvalidArgument(
      "Parallel: join is not supported, because all ranks of a mesh run the same steps; use "
      "DistributedDataParallel or ShardedDataParallel");
}
void Parallel::register_comm_hook(const std::shared_ptr<CommHook>& /*hook*/) {
  throw InvalidArgument("Parallel: communication hooks are not supported; use DistributedDataParallel");
}

StepWatchers& Parallel::watchers() {
  return state_->with_mode([](auto& mode) -> StepWatchers& { return Recorder::watchers_of(mode); });
}

namespace {

// A loss function of whole micro-batches as one of inputs and targets.
auto with_targets(MicroBatchLoss loss_fn) {
  return [loss_fn](const std::vector<Tensor>& inputs, const Tensor& y) {
    Batch micro_batch = inputs;
    micro_batch.push_back(y);
    return loss_fn(micro_batch);
  };
}

}  // namespace

Tensor Parallel::run(const Batch& batch, MicroBatchLoss loss_fn) {
  const std::vector<Tensor> inputs(batch.begin(), batch.end() - 1);
  return state_->with_mode([&](auto& mode) { return mode.backward(inputs, batch.back(), with_targets(loss_fn)); });
}
Tensor Parallel::run_evaluation(const Batch& batch, MicroBatchLoss loss_fn) {
  const std::vector<Tensor> inputs(batch.begin(), batch.end() - 1);
  return state_->with_mode([&](auto& mode) { return mode.evaluate(inputs, batch.back(), with_targets(loss_fn)); });
}

std::shared_ptr<ModelState> Parallel::model_state() {
  return state_->with_mode([](auto& mode) { return CheckpointModel(&mode).state(); });
}

}  // namespace lockstep::parallel
