#include "lockstep/parallel/replicated/distributed.h"

#include <algorithm>
#include <utility>

#include "lockstep/parallel/replicated/distributed_state_internal.h"
#include "lockstep/parallel/replicated/model_check_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/kernels_internal.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/random.h"

namespace lockstep::parallel {
namespace {

Reducer::Named trained(const nn::Module& module) {
  Reducer::Named named = module.named_parameters();
  std::erase_if(named, [](const auto& entry) { return !entry.second.master().requires_grad(); });
  return named;
}

// A group on which no other model's buckets are launched: two models may be reduced in another order on each rank.
std::shared_ptr<ProcessGroup> own_group(std::shared_ptr<ProcessGroup> group) {
  const Tensor taken = raw::full({1}, Reducer::is_on(*group) ? 1 : 0, {.dtype = kInt32});
  group->all_reduce(taken, ReduceOp::kMax)->wait();
  return taken.item<int>() == 0 ? group : group->twin();
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                                 const DistributedDataParallelOptions& options) {
  LOCKSTEP_CHECK(group, "DistributedDataParallel: the process group is null; init_process_group makes one");
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "DistributedDataParallel: it cannot be made inside a DataParallel replica");
  LOCKSTEP_CHECK(options.bucket_cap_mb > 0, "DistributedDataParallel: bucket_cap_mb is {}, expected more than 0",
                 options.bucket_cap_mb);
  LOCKSTEP_CHECK(
      options.micro_batches_per_rank >= 1 && options.micro_batches_per_rank * group->size() <= random::kMaxMicroBatches,
      "DistributedDataParallel: {} micro-batches a rank on {} ranks, expected 1 to {} in all",
      options.micro_batches_per_rank, group->size(), random::kMaxMicroBatches);
  state_ = std::make_unique<State>(module, std::move(group), options);
  LOCKSTEP_CHECK(!state_->parameters.list().empty(),
                 "DistributedDataParallel: the module has no parameter that requires grad");
  check_same_model(
      module, *state_->group,
      fmt::format("bucket_cap_mb {} micro_batches_per_rank {} sync_buffers {} weighting {} check_every {}, {} {}",
                  options.bucket_cap_mb, options.micro_batches_per_rank, options.sync_buffers,
                  static_cast<int>(options.weighting), options.check_every, version(), cpu_description()));
  state_->group = own_group(state_->group);
  state_->share_state(0);
  state_->install();
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::State::share_state(int root) {
  {
    const PhaseGuard phase(*group, Phase::kParameters);
    for (const nn::Parameter& parameter : module.parameters()) group->broadcast(parameter.master(), root)->wait();
  }
  share_buffers(root);
  group->release_staging();
}

void DistributedDataParallel::State::share_buffers(int root) {
  const PhaseGuard phase(*group, Phase::kBuffers);
  for (const nn::Buffer& buffer : module.buffers()) group->broadcast(buffer.master(), root)->wait();
}

// Also again where parameters have been frozen, unfrozen or converted since; all ranks have to do that alike.
void DistributedDataParallel::State::install() {
  LOCKSTEP_CHECK(nn::current_replica_view() == nullptr,
                 "DistributedDataParallel: it cannot run inside a DataParallel replica");
  if (parameters.changed() || !reducer || reducer->outdated()) {
    LOCKSTEP_CHECK(!joining,
                   "DistributedDataParallel: inside join the parameters that are trained have to stay the same");
    reducer = std::make_unique<Reducer>(trained(module), group, options);
    reducer->after_step([this] { after_step(); });
    if (hook) reducer->set_hook(hook);
    sets = GradientSets(parameters.list());
    sets.set_homes(reducer->homes());
  }
  reducer->abandon();  // what an error may have left
  reducer->set_sync(no_sync_depth == 0);
}

void DistributedDataParallel::State::after_step() {
  reduced = true;
  if (joining) after_joined_step();
  if (options.sync_buffers && !buffers.empty()) share_buffers(joining ? joining->buffers_of : 0);
  // Ranks that are out of data have fallen behind.
  if (options.check_every > 0 && reducer->steps() % options.check_every == 0 && reducer->joined() == 0)
    check_same_values(module, *group, options.sync_buffers);
}

Tensor DistributedDataParallel::operator()(const Tensor& x) {
  state_->install();
  const random::MicroBatchGuard micro_batch(state_->group->rank());
  return state_->module(x);
}

Tensor DistributedDataParallel::operator()(const std::vector<Tensor>& inputs) {
  state_->install();
  const random::MicroBatchGuard micro_batch(state_->group->rank());
  return state_->module(inputs);
}

std::vector<nn::Parameter> DistributedDataParallel::parameters() const { return state_->module.parameters(); }
nn::Module& DistributedDataParallel::module() const { return state_->module; }

// What stands before: means over all ranks are added after the step; gradients of this rank alone (after no_sync),
// which are means over the rank, take part in it.
Tensor DistributedDataParallel::run(const Batch& batch, MicroBatchLoss loss_fn) {
  State& state = *state_;
  state.install();
  StandingGradients standing(state.parameters.list());
  const bool were_reduced = std::exchange(state.reduced, false);
  try {
    const Tensor loss = state.step(batch, loss_fn, were_reduced ? nullptr : &standing);
    standing.add_back();
    return loss;
  } catch (...) {
    state.reducer->abandon();  // it must not keep what lives here
    state.reducer->set_sync(state.no_sync_depth == 0);
    throw;
  }
}

// One step without what stood before; `standing` joins the sum. The last micro-batch's backward fills the buckets.
Tensor DistributedDataParallel::State::step(const Batch& batch, MicroBatchLoss loss_fn, StandingGradients* standing) {
  const char* const op = "DistributedDataParallel";
  const std::int64_t rows = rows_of(op, batch);
  const int micro_batches = options.micro_batches_per_rank,
            running = static_cast<int>(std::min<std::int64_t>(rows, micro_batches));
  const bool sync = reducer->sync(), weighted = options.weighting == Weighting::kSamples;
  const StepScale local = weighted && rows > 0 ? StepScale(rows) : StepScale(micro_batches, std::max(running, 1));
  Reducer::Step step{.sets = &sets,
                     .standing = standing,
                     .standing_factor = 1 / local.first,
                     .micro_batches = running,
                     .rows = rows,
                     .weighted = weighted};
  buffers.begin_step(running > 1);
  reducer->set_sync(false);
  std::vector<Tensor> losses;
  for (int s = 0; s < running; ++s) {
    const RowRange range = micro_batch_rows(rows, s, micro_batches);
    const random::MicroBatchGuard micro_batch(group->rank() * micro_batches + s);
    nn::ReplicaView view;
    if (s > 0) buffers.enter(view);
    const nn::ReplicaViewGuard guard(s > 0 && !buffers.empty() ? &view : nn::current_replica_view());
    sets.begin(s, running);
    const Tensor loss = loss_fn(narrow_rows(batch, range));
    const std::int64_t weight = weighted ? range.count : 1;
    losses.push_back(weighted_loss(op, loss, weight));
    if (sync && s == running - 1) {
      step.loss = combine_losses(losses).item<double>();
      reducer->begin_step(step);
      reducer->set_sync(true);
    }
    weighted_backward(loss, weight);
    sets.end(s, running);
  }
  if (!sync) {
    if (running == 0) return raw::full(Shape(), 0, {.dtype = kFloat32});
    for (std::size_t p = 0; p < parameters.list().size(); ++p) {
      const Tensor sum = sets.finish(p);
      scale_gradient(sum, local.first);
      scale_gradient(sum, local.second);
      set_rounded(parameters.list()[p].master(), sum);
    }
    return combine_losses(losses, local);
  }
  if (running == 0) {  // nothing to add, but the others wait for this rank's part
    sets.begin(0, 1);
    reducer->begin_step(step);
    reducer->set_sync(true);
  }
  reducer->end_step();
  return raw::full(Shape(), reducer->mean_loss(), {.dtype = losses.empty() ? kFloat32 : losses[0].dtype()});
}

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() {
  ++state_->no_sync_depth;
  state_->reduced = false;  // from here on gradients are this rank's; a mean that stands is the same on all ranks
  state_->reducer->set_sync(false);
  return NoSync(this);
}

DistributedDataParallel::NoSync::~NoSync() {
  if (!owner_) return;
  State& state = *owner_->state_;
  state.reducer->set_sync(--state.no_sync_depth == 0);
}

void DistributedDataParallel::register_comm_hook(std::shared_ptr<CommHook> hook) {
  State& state = *state_;
  LOCKSTEP_CHECK(hook, "register_comm_hook: the hook is null");
  LOCKSTEP_CHECK(!state.hook, "register_comm_hook: there is one already ({})", state.hook->describe());
  LOCKSTEP_CHECK(state.reducer->steps() == 0, "register_comm_hook: after {} steps; register it before the first",
                 state.reducer->steps());
  check_same_text("register_comm_hook: ranks have different hooks", hook->describe(), *state.group);
  state.hook = hook;
  state.reducer->set_hook(std::move(hook));
}

void DistributedDataParallel::request_stop() { state_->reducer->request_stop(); }
bool DistributedDataParallel::stop_requested() const { return state_->reducer->stop_requested(); }

DistributedDataParallelStats DistributedDataParallel::stats() const {
  DistributedDataParallelStats stats;
  state_->reducer->fill(stats);
  return stats;
}

std::vector<std::string> DistributedDataParallel::unused_parameters() const { return state_->reducer->unused(); }

}  // namespace lockstep::parallel
