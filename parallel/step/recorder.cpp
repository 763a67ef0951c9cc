#include "lockstep/parallel/step/recorder.h"

#include <fmt/format.h>

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
#include "lockstep/parallel/step/record_file_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {

// Hooks refer to it weakly, because those in graphs may outlive the Recorder. Replicas run at the same time: the mutex
// guards what follows it.
struct Recorder::State : std::enable_shared_from_this<State> {
  State(Source of_run, const std::string& directory, RecorderOptions of_record)
      : source(std::move(of_run)), options(std::move(of_record)),
        file(directory, ranks()[source.group ? static_cast<std::size_t>(source.group->rank()) : 0], ranks(),
             options.values) {}

  void install(nn::Module& module, const std::string& path);
  void remove_hooks();
  void begin_forward(const std::string& path, const std::vector<Tensor>& inputs);
  void end_forward(const std::string& path, const Tensor& output);
  void gradients_ready();
  void end_last_step();

  const Source source;
  const RecorderOptions options;

 private:
  std::vector<int> ranks() const;
  bool is_recording() const;
  bool wants(std::string_view path) const;
  bool wants_parameter(std::string_view name) const;  // whether its module is
  void begin_micro_batch(int micro_batch, const std::vector<Tensor>& inputs);
  void hook_parameters(int micro_batch);
  void hook_input(const std::string& path, int micro_batch, const Tensor& input);
  void begin_step();
  void end_step();
  void add_state(std::int64_t after);
  std::int64_t count_call(const char* what, int micro_batch, const std::string& name);
  RecordKey key(const char* what, int micro_batch, std::string_view name, std::int64_t call) const {
    return {.step = step, .what = what, .micro_batch = micro_batch, .name = name, .call = call};
  }
  void add(const RecordKey& key, const Tensor& tensor);
  void add_part(const RecordKey& key, const ShardedParameter& of, const Tensor& tensor);

  RecordFile file;
  std::vector<HookHandle> hooks;

  std::recursive_mutex mutex;
  bool has_begun = false;
  std::int64_t step = 0;
  bool has_gradients = false;    // those of the step have been recorded: the optimizer comes next
  std::set<int> with_gradients;  // micro-batches of the step whose backward has begun to reach parameters
  std::map<std::tuple<std::string, int, std::string>, std::int64_t> calls;  // of the step
  std::map<const TensorImpl*, std::pair<Tensor, HookHandle>> leaves;        // parameters whose gradients are recorded
};

// --- hooks on the modules ------------------------------------------------------------------------------------------

void Recorder::State::install(nn::Module& module, const std::string& path) {
  hooks.push_back(module.register_forward_pre_hook(
      [weak = weak_from_this(), path](const nn::Module&, const std::vector<Tensor>& inputs) {
        if (const auto state = weak.lock()) state->begin_forward(path, inputs);
        return std::vector<Tensor>();
      }));
  hooks.push_back(module.register_forward_hook(
      [weak = weak_from_this(), path](const nn::Module&, const std::vector<Tensor>&, const Tensor& output) {
        if (const auto state = weak.lock()) state->end_forward(path, output);
        return Tensor();
      }));
  for (nn::Module* const child : module.children()) install(*child, nn::join(path, child->name()));
}

void Recorder::State::remove_hooks() {
  for (HookHandle& hook : hooks) hook.remove();
  const std::lock_guard lock(mutex);
  for (auto& [address, leaf] : leaves) leaf.second.remove();
  leaves.clear();
}

void Recorder::State::begin_forward(const std::string& path, const std::vector<Tensor>& inputs) {
  if (!autograd::grad_mode()) return;
  const std::lock_guard lock(mutex);
  const int micro_batch = random::current_micro_batch();
  if (path.empty() && !autograd::is_recomputing()) begin_micro_batch(micro_batch, inputs);
  if (is_recording() && wants(path) && !inputs.empty()) hook_input(path, micro_batch, inputs[0]);
}

void Recorder::State::end_forward(const std::string& path, const Tensor& output) {
  if (!autograd::grad_mode() || autograd::is_recomputing() || !output.defined()) return;
  const int micro_batch = random::current_micro_batch();
  const std::lock_guard lock(mutex);
  if (is_recording() && wants(path))
    add(key("output", micro_batch, path, count_call("output", micro_batch, path)), output);
}

// Begins the next step, if need be: a micro-batch has one backward in a step.
void Recorder::State::begin_micro_batch(int micro_batch, const std::vector<Tensor>& inputs) {
  if (with_gradients.contains(micro_batch)) end_step();
  begin_step();
  if (!is_recording()) return;
  hook_parameters(micro_batch);
  for (const Tensor& input : inputs)
    if (input.defined()) add(key("input", micro_batch, "", count_call("input", micro_batch, "")), input);
}

// Records the gradients of this micro-batch's backward. A replica has parameters of its own; where micro-batches share
// the parameters, a backward follows its forward.
void Recorder::State::hook_parameters(int micro_batch) {
  for (const auto& [name, parameter] : source.module.named_parameters()) {
    const Tensor& leaf = parameter.tensor();
    if (!leaf.requires_grad() || !leaf.is_leaf() || !wants_parameter(name)) continue;
    auto& [kept, hook] = leaves[&leaf.impl()];
    hook.remove();
    kept = leaf;
    hook = leaf.register_hook([weak = weak_from_this(), name = name, micro_batch](const Tensor& gradient) {
      const auto state = weak.lock();
      if (!state) return Tensor();
      const std::lock_guard lock(state->mutex);
      state->with_gradients.insert(micro_batch);
      const std::int64_t call = state->count_call("micro_batch_gradient", micro_batch, name);
      if (state->is_recording()) state->add(state->key("micro_batch_gradient", micro_batch, name, call), gradient);
      return Tensor();
    });
  }
}

// The calls that recomputation repeats come in another order: only that of a module that was called once is known.
void Recorder::State::hook_input(const std::string& path, int micro_batch, const Tensor& input) {
  if (autograd::is_recomputing() && calls[{"output", micro_batch, path}] != 1) return;
  const std::int64_t call = autograd::is_recomputing() ? 0 : calls[{"output", micro_batch, path}];
  if (!input.defined() || !input.requires_grad() || input.is_leaf()) return;
  input.register_hook([weak = weak_from_this(), path, micro_batch, call](const Tensor& gradient) {
    const auto state = weak.lock();
    if (!state) return Tensor();
    const std::lock_guard lock(state->mutex);
    if (state->is_recording()) state->add(state->key("input_gradient", micro_batch, path, call), gradient);
    return Tensor();
  });
}

// --- steps ---------------------------------------------------------------------------------------------------------

void Recorder::State::gradients_ready() {
  const std::lock_guard lock(mutex);
  begin_step();  // this rank may have had no samples
  has_gradients = true;
  if (!is_recording()) return;
  for (const ShardedParameter& each : source.parameters)
    add_part({.step = step, .what = "gradient", .name = each.name}, each, each.parameter.master().grad());
}

// Begins the next step if the gradients of the last one are complete.
void Recorder::State::begin_step() {
  if (!std::exchange(has_begun, true)) add_state(-1);
  if (has_gradients) end_step();
}

// The optimizer has stepped.
void Recorder::State::end_step() {
  add_state(step);
  ++step;
  has_gradients = false;
  with_gradients.clear();
  calls.clear();
  for (auto& [address, leaf] : leaves) leaf.second.remove();
  leaves.clear();
}

void Recorder::State::end_last_step() {
  const std::lock_guard lock(mutex);
  if (has_gradients || !with_gradients.empty()) end_step();
}

bool Recorder::State::is_recording() const {
  return step >= options.first_step && (options.last_step < 0 || step <= options.last_step);
}

bool Recorder::State::wants(std::string_view path) const { return nn::matches_any(options.modules, path); }

bool Recorder::State::wants_parameter(std::string_view name) const {
  const std::size_t dot = name.rfind('.');
  return wants(name.substr(0, dot == std::string_view::npos ? 0 : dot));
}

// Parameters and buffers after a step; -1: before the first one.
void Recorder::State::add_state(std::int64_t after) {
  if (after + 1 < options.first_step || (options.last_step >= 0 && after > options.last_step)) return;
  for (const ShardedParameter& each : source.parameters)
    add_part({.step = after, .what = "parameter", .name = each.name}, each, each.parameter.master());
  for (const auto& [name, buffer] : source.module.named_buffers()) {
    if (wants_parameter(name)) add({.step = after, .what = "buffer", .name = name}, buffer.master());
  }
  file.flush();
}

// Those of the group, as the group of init_process_group numbers them.
std::vector<int> Recorder::State::ranks() const {
  if (!source.group) return {0};
  std::vector<int> ranks;
  for (int r = 0; r < source.group->size(); ++r) ranks.push_back(source.group->global_rank(r));
  return ranks;
}

std::int64_t Recorder::State::count_call(const char* what, int micro_batch, const std::string& name) {
  return calls[{what, micro_batch, name}]++;
}

void Recorder::State::add(const RecordKey& key, const Tensor& tensor) {
  file.add(key, tensor, TensorPart::whole(tensor.shape()), tensor.shape());
}

// `tensor` has the elements of the parameter that this rank has.
void Recorder::State::add_part(const RecordKey& key, const ShardedParameter& of, const Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || !wants_parameter(of.name)) return;
  file.add(key, tensor, of.part, of.shape);
}

// --- the public class ----------------------------------------------------------------------------------------------

Recorder::Recorder(Source source, const std::string& directory, const RecorderOptions& options)
    : state_(std::make_shared<State>(std::move(source), directory, options)) {
  state_->install(state_->source.module, "");
}

Recorder::~Recorder() {
  state_->remove_hooks();
  try {
    state_->end_last_step();
  } catch (const Error& error) {  // of the file
    warn("Recorder", error.what());
  }
}

Callback<void()> Recorder::gradients_ready() {
  return [weak = std::weak_ptr(state_)] {
    if (const auto state = weak.lock()) state->gradients_ready();
  };
}

// All ranks of a run take the same number, also if some of them have had fewer runs. Ranks may be threads.
std::string Recorder::next_directory(ProcessGroup* group) {
  static struct {
    std::mutex mutex;
    std::map<int, int> runs;  // by rank
  } recorded;
  const std::optional<std::string> directory = environment("LOCKSTEP_RECORD");
  if (!directory) return "";
  const int rank = group ? group->rank() : 0;
  std::unique_lock lock(recorded.mutex);
  int run = recorded.runs[rank] + 1;
  lock.unlock();
  if (group) {
    const Tensor number = raw::full({1}, run, {.dtype = kInt32});
    group->all_reduce(number, ReduceOp::kMax, {.name = "number of the recorded run"})->wait();
    run = number.item<int>();
  }
  lock.lock();
  recorded.runs[rank] = run;
  return run == 1 ? *directory : fmt::format("{}/{}", *directory, run);
}

RecorderOptions Recorder::environment_options() {
  return {.values = environment_number("LOCKSTEP_RECORD_VALUES", 0, 1).value_or(0) == 1};
}

}  // namespace lockstep::parallel
