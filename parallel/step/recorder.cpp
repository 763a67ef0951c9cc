#include "lockstep/parallel/step/recorder.h"

#include <fmt/format.h>

#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/step/activation_part_internal.h"
#include "lockstep/parallel/step/record_file_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"
#include "lockstep/parallel/step/step_watchers_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
namespace {

// As the group of init_process_group numbers them. A null group: this process alone.
int rank_in(const ProcessGroup* group) { return group ? group->global_rank(group->rank()) : 0; }

std::vector<int> ranks_of(const ProcessGroup* group) {
  std::vector<int> ranks;
  for (int r = 0; group && r < group->size(); ++r) ranks.push_back(group->global_rank(r));
  return group ? ranks : std::vector<int>{0};
}

}  // namespace

// Hooks refer to it weakly, because those in graphs may outlive the Recorder. Replicas run at the same time: the mutex
// guards what follows it.
struct Recorder::State final : StepWatcher, std::enable_shared_from_this<State> {
  State(Source of_run, const std::string& directory, RecorderOptions of_record)
      : source(std::move(of_run)), options(std::move(of_record)),
        file(directory, rank_in(all_ranks(source.module, source.group).get()),
             ranks_of(all_ranks(source.module, source.group).get()), options.values) {}

  void install(nn::Module& module, const std::string& path);
  void remove_hooks();
  void begin_forward(const std::string& path, const ModuleActivations& activations, const std::vector<Tensor>& inputs);
  void end_forward(const std::string& path, const ModuleActivations& activations, const Tensor& output);
  void begin_step(const WatchedStep& next) override;
  void gradients_ready() override;
  void drop_step() override;
  void end_last_step();

  const Source source;
  const RecorderOptions options;
  const std::shared_ptr<const StageRunner> stages = stage_runner(source.module);  // null: not in stages

 private:
  bool is_in_range() const;
  bool is_recording() const { return is_running && is_in_range(); }
  bool wants(std::string_view path) const;
  bool wants_parameter(std::string_view name) const { return wants(nn::module_path(name)); }
  void hook_parameters(int micro_batch);
  void remove_leaf_hooks();
  void hook_input(const std::string& path, const ModuleActivations& activations, int micro_batch, const Tensor& input);
  void end_step();
  void add_state(std::int64_t after);
  RecordKey key(const char* what, int micro_batch, const std::string& name);
  void add(const RecordKey& key, const Tensor& tensor);
  void add_parameter(const RecordKey& key, const nn::Parameter& parameter, const Tensor& tensor, const TensorPart& part,
                     const Shape& shape);

  RecordFile file;
  std::vector<HookHandle> hooks;

  std::mutex mutex;
  std::optional<WatchedStep> current;                                       // null: before the first step
  std::int64_t step = 0;                                                    // its number
  bool is_running = false;                                                  // its forward may run
  std::set<int> hooked;                                                     // micro-batches of the step that have begun
  bool has_backward = false;                                                // gradients have reached parameters
  bool is_dropped = false;                                                  // there was no such step
  std::map<std::tuple<std::string, int, std::string>, std::int64_t> calls;  // of the step
  std::map<const TensorImpl*, std::pair<Tensor, HookHandle>> leaves;        // parameters whose gradients are recorded
};

// --- hooks on the modules ------------------------------------------------------------------------------------------

void Recorder::State::install(nn::Module& module, const std::string& path) {
  const ModuleActivations activations(module);
  hooks.push_back(module.register_forward_pre_hook(
      [weak = weak_from_this(), path, activations](const nn::Module&, const std::vector<Tensor>& inputs) {
        if (const auto state = weak.lock()) state->begin_forward(path, activations, inputs);
        return std::vector<Tensor>();
      }));
  hooks.push_back(
      module.register_forward_hook([weak = weak_from_this(), path, activations](
                                       const nn::Module&, const std::vector<Tensor>&, const Tensor& output) {
        if (const auto state = weak.lock()) state->end_forward(path, activations, output);
        return Tensor();
      }));
  for (nn::Module* const child : module.children()) install(*child, nn::join(path, child->name()));
}

void Recorder::State::remove_hooks() {
  for (HookHandle& hook : hooks) hook.remove();
  const std::lock_guard lock(mutex);
  remove_leaf_hooks();
}

void Recorder::State::remove_leaf_hooks() {
  for (auto& [address, leaf] : leaves) leaf.second.remove();
  leaves.clear();
}

void Recorder::State::begin_forward(const std::string& path, const ModuleActivations& activations,
                                    const std::vector<Tensor>& inputs) {
  if (!autograd::grad_mode()) return;
  const std::lock_guard lock(mutex);
  const int micro_batch = random::current_micro_batch();
  // Outside the range of steps, only the end of a step of the user's own is of interest.
  if (is_running && (is_in_range() || current->is_of_user) && hooked.insert(micro_batch).second)
    hook_parameters(micro_batch);
  if (!is_recording()) return;
  for (const Tensor& input : inputs) {
    if (path.empty() && !autograd::is_recomputing() && input.defined()) add(key("input", micro_batch, ""), input);
  }
  if (wants(path) && !inputs.empty()) hook_input(path, activations, micro_batch, inputs[0]);
}

void Recorder::State::end_forward(const std::string& path, const ModuleActivations& activations, const Tensor& output) {
  if (!autograd::grad_mode() || autograd::is_recomputing() || !output.defined()) return;
  const std::lock_guard lock(mutex);
  if (!is_recording() || !wants(path)) return;
  if (const std::optional<ActivationPart> place = activations.of_output(output))
    file.add(key("output", random::current_micro_batch(), path), output, place->part, place->shape);
}

// Records the gradients of this micro-batch's backward. A replica has parameters of its own; where micro-batches share
// the parameters, a backward follows its forward or, in a pipeline, runs as its micro-batch. Modules of a pipeline's chain
// that share a parameter have a gradient each, and no rank the sum. A hook changes the order in which a backward adds to a
// gradient of an earlier one, which only a backward of the user's own does.
void Recorder::State::hook_parameters(int micro_batch) {
  for (const auto& [name, parameter] : source.module.named_parameters()) {
    if (stages && stages->is_shared(parameter)) continue;
    const Tensor& leaf = parameter.tensor();
    if (!leaf.requires_grad() || !leaf.is_leaf() || (current->is_of_user && leaf.grad().defined())) continue;
    auto& [kept, hook] = leaves[&leaf.impl()];
    hook.remove();
    kept = leaf;
    hook = leaf.register_hook(
        [weak = weak_from_this(), name = name, parameter = parameter, micro_batch](const Tensor& gradient) {
          const auto state = weak.lock();
          if (!state) return Tensor();
          const std::lock_guard lock(state->mutex);
          state->has_backward = true;
          const int of = state->stages ? random::current_micro_batch() : micro_batch;
          if (state->is_in_range())
            state->add_parameter(state->key("micro_batch_gradient", of, name), parameter, gradient,
                                 TensorPart::whole(gradient.shape()), gradient.shape());
          return Tensor();
        });
  }
}

// Calls count in the order of backward, which is that of all modes, also if forward is repeated. The input of a pipeline's
// stage is a leaf of its own.
void Recorder::State::hook_input(const std::string& path, const ModuleActivations& activations, int micro_batch,
                                 const Tensor& input) {
  if (!input.defined() || !input.requires_grad()) return;
  const bool is_of_stage = stages && !autograd::is_recomputing() && !leaves.contains(&input.impl());
  if (input.is_leaf() && !is_of_stage) return;
  const std::optional<ActivationPart> place = activations.of_input(input);
  if (!place) return;
  input.register_hook([weak = weak_from_this(), path, micro_batch, place = *place](const Tensor& gradient) {
    const auto state = weak.lock();
    if (!state) return Tensor();
    const std::lock_guard lock(state->mutex);
    if (state->is_in_range())
      state->file.add(state->key("input_gradient", micro_batch, path), gradient, place.part, place.shape);
    return Tensor();
  });
}

// --- steps ---------------------------------------------------------------------------------------------------------

void Recorder::State::begin_step(const WatchedStep& next) {
  const std::lock_guard lock(mutex);
  if (current && next.is_of_user && is_running && !has_backward) return;  // another forward before loss.backward()
  const bool is_first = !current;
  if (!is_first) end_step();
  current = next;
  is_running = true;
  if (is_first) add_state(-1);
}

void Recorder::State::gradients_ready() {
  const std::lock_guard lock(mutex);
  is_running = false;
  if (!is_in_range()) return;
  for (const ShardedParameter& each : source.parameters)
    add_parameter({.step = step, .what = "gradient", .name = each.name}, each.parameter, each.parameter.master().grad(),
                  each.part, each.shape);
}

void Recorder::State::drop_step() {
  const std::lock_guard lock(mutex);
  is_dropped = true;
}

// The optimizer has stepped.
void Recorder::State::end_step() {
  if (!is_dropped) add_state(step++);
  is_running = is_dropped = has_backward = false;
  hooked.clear();
  calls.clear();
  remove_leaf_hooks();
}

void Recorder::State::end_last_step() {
  const std::lock_guard lock(mutex);
  if (current) end_step();
}

bool Recorder::State::is_in_range() const {
  return step >= options.first_step && (options.last_step < 0 || step <= options.last_step);
}

bool Recorder::State::wants(std::string_view path) const { return nn::matches_any(options.modules, path); }

// Parameters and buffers after a step; -1: before the first one.
void Recorder::State::add_state(std::int64_t after) {
  if (after + 1 < options.first_step || (options.last_step >= 0 && after > options.last_step)) return;
  const bool has_buffers = current->has_same_buffers || !source.group || source.group->rank() == 0;
  for (const ShardedParameter& each : source.parameters) {
    if (!current->has_parameters) break;
    add_parameter({.step = after, .what = "parameter", .name = each.name}, each.parameter, each.parameter.master(),
                  each.part, each.shape);
  }
  for (const auto& [name, buffer] : source.module.named_buffers()) {
    if (has_buffers && wants_parameter(name)) add({.step = after, .what = "buffer", .name = name}, buffer.master());
  }
  file.flush();
}

// The next call.
RecordKey Recorder::State::key(const char* what, int micro_batch, const std::string& name) {
  return {
      .step = step, .what = what, .micro_batch = micro_batch, .name = name, .call = calls[{what, micro_batch, name}]++};
}

void Recorder::State::add(const RecordKey& key, const Tensor& tensor) {
  file.add(key, tensor, TensorPart::whole(tensor.shape()), tensor.shape());
}

// `tensor` has the elements `part` of a parameter with this shape. Those of a slice are recorded as a part of the parameter
// that it was cut from.
void Recorder::State::add_parameter(const RecordKey& key, const nn::Parameter& parameter, const Tensor& tensor,
                                    const TensorPart& part, const Shape& shape) {
  if (!tensor.defined() || tensor.numel() == 0 || !wants_parameter(key.name)) return;
  const nn::ParameterSlice* const slice = parameter.slice();
  if (!slice) return file.add(key, tensor, part, shape);
  const std::string name = nn::ListedTensor{.name = std::string(key.name), .tensor = {}, .slice = slice}.whole_name();
  RecordKey of_whole = key;
  of_whole.name = name;
  file.add(of_whole, tensor, slice->part.narrow(part.at(0), part.numel), slice->shape);
}

// --- the public class ----------------------------------------------------------------------------------------------

Recorder::Recorder(Source source, const std::string& directory, const RecorderOptions& options)
    : state_(std::make_shared<State>(std::move(source), directory, options)) {
  state_->install(state_->source.module, "");
}

Recorder::~Recorder() {
  try {
    state_->remove_hooks();
    state_->end_last_step();
  } catch (const std::exception& error) {
    warn("Recorder", error.what());
  }
}

void Recorder::watch(StepWatchers& watchers) const { watchers.add(state_); }

// All ranks that share the state of the run: those of its group or, if the model is cut or in stages, of the mesh.
std::shared_ptr<ProcessGroup> Recorder::all_ranks(nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  std::shared_ptr<const SharedRunner> runner = stage_runner(module);
  if (!runner || !runner->group) runner = model_runner(module);
  if (!runner) return group;
  return runner->mesh ? runner->mesh : runner->group;
}

// All ranks of a run take the same number, also if some of them have had fewer runs. Ranks may be threads.
std::string Recorder::next_directory(ProcessGroup* group) {
  static struct {
    std::mutex mutex;
    std::map<std::pair<std::string, int>, int> runs;  // by directory and rank
  } recorded;
  const std::optional<std::string> directory = environment("LOCKSTEP_RECORD");
  if (!directory) return "";
  const int rank = rank_in(group);
  std::unique_lock lock(recorded.mutex);
  int run = recorded.runs[{*directory, rank}] + 1;
  lock.unlock();
  if (group) {
    const Tensor number = raw::full({1}, run, {.dtype = kInt32});
    group->all_reduce(number, ReduceOp::kMax, {.name = "number of the recorded run"})->wait();
    run = number.item<int>();
  }
  lock.lock();
  recorded.runs[{*directory, rank}] = run;
  return run == 1 ? *directory : fmt::format("{}/{}", *directory, run);
}

RecorderOptions Recorder::environment_options() {
  return {.values = environment_number("LOCKSTEP_RECORD_VALUES", 0, 1).value_or(0) == 1};
}

}  // namespace lockstep::parallel
