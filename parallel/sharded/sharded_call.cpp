// A step of operator() and a backward that the user calls. It begins with the forward, because units are gathered then.
// It ends with the first backward from the result, or without one when the graph of the result is destroyed.
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_access_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
namespace {

constexpr MicroBatchPlan kPlan = {.op = "ShardedDataParallel", .samples = 1, .micro_batches = 1};

}  // namespace

// Owned by the graph of the result, and by the backward while it runs. Its states, in order:
//
//   forward   operator() runs, once or several times; the parameters may not change
//   backward  a gradient has reached a result or a parameter; outside no_sync there is a ReducedStep
//   ending    the backward has reached a parameter, and ends the step when it ends
//   over
class ShardedDataParallel::State::Call {
 public:
  explicit Call(State& state) : access_(state.access), version_(version_of(state)) {
    state.begin_step();
    if (autograd::grad_mode()) state.watch_step(/*is_of_user=*/true);
    state.begin_micro_batches();
  }
  ~Call() { end(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool is_in_forward() const { return phase_ == Phase::kForward; }
  // Whether a backward runs that will end the step.
  bool is_ending() const { return phase_ == Phase::kEnding; }
  // Whether the parameters were changed since the step began.
  bool is_stale() const { return version_ != version_of(*access_->state); }
  // Backward has reached the result, or a parameter.
  void begin_backward() {
    LOCKSTEP_CHECK(access_->state, "ShardedDataParallel: backward after the ShardedDataParallel was destroyed");
    LOCKSTEP_CHECK(
        phase_ != Phase::kOver,
        "ShardedDataParallel: a second backward in a step that is over; add the losses and call backward once");
    if (!is_in_forward()) return;
    LOCKSTEP_CHECK(!is_stale(),
                   "ShardedDataParallel: parameters were changed between operator() and its backward; call the "
                   "optimizer's step() after backward");
    State& state = *access_->state;
    phase_ = Phase::kBackward;
    means_.emplace(state.with_means());
    own_.emplace(state.with_own());
    state.micro_batches.sets().begin(0, 1);
    if (state.local_depth == 0) {
      StepInputs of_step = state.inputs({.samples = kPlan.samples});
      of_step.sets = &state.micro_batches.sets();
      of_step.accumulated = &*own_;
      step_.emplace(*state.gradients, of_step, state.step);
    }
    state.gathers->begin_backward({}, BackwardPart::kWhole);
  }
  // The step ends with the backward, also after an exception.
  static void end_with(const std::shared_ptr<Call>& call, autograd::Run& run) {
    if (call->is_ending()) return;
    call->phase_ = Phase::kEnding;
    const std::shared_ptr<Call> ending(call.get(), [call](Call* ended) { ended->end(); });
    run.at_end([ending] { ending->finish(); });
    run.at_error([access = call->access_](const std::exception& error) {
      if (State* const state = access->state) state->end_failed_step(error);
    });
  }
  void end() {
    if (phase_ == Phase::kOver) return;
    const bool is_partial = !is_in_forward() && !is_done_;
    phase_ = Phase::kOver;
    step_.reset();
    if (State* const state = access_->state) {
      state->gathers->end_step();
      if (is_partial) state->drop_partial_gradients();
      state->call.reset();
    }
    means_.reset();  // restores gradients that the step has not taken
    own_.reset();
  }

 private:
  enum class Phase : std::uint8_t { kForward, kBackward, kEnding, kOver };

  static std::uint64_t version_of(const State& state) {
    std::uint64_t sum = 0;
    for (const FlatParameters* flat : state.trained) sum += flat->master.impl().storage->version();
    return sum;
  }
  void finish() {
    State& state = *access_->state;
    state.gathers->end_backward();
    state.gathers->end_step();
    if (step_) {
      state.finish_step();
      own_->forget();
      means_->add_back();
      state.watchers.gradients_ready();
    } else {
      state.finish_local(kPlan, *own_);
    }
    is_done_ = true;
  }

  std::shared_ptr<ShardedAccessSupplier> access_;
  std::uint64_t version_;                      // of the parameters
  std::optional<AccumulatedGradients> means_;  // of the pieces
  std::optional<AccumulatedGradients> own_;    // of steps in no_sync
  std::optional<ReducedStep> step_;
  Phase phase_ = Phase::kForward;
  bool is_done_ = false;
};

Tensor ShardedDataParallel::State::forward(FunctionRef<Tensor()> run_module) {
  return run_or_end(mode, *this, [&] { return begin_call(run_module); });
}

Tensor ShardedDataParallel::State::begin_call(FunctionRef<Tensor()> run_module) {
  end_failed_call();
  std::shared_ptr<Call> open = call.lock();
  if (!open) {
    prepare();
    LOCKSTEP_CHECK(!joining, "ShardedDataParallel: operator() inside join; call backward(x, y, loss_fn)");
    LOCKSTEP_CHECK(options.micro_batches_per_rank == 1 && options.weighting == Weighting::kEqual,
                   "ShardedDataParallel: operator() with {} micro-batches per rank{}; call backward(x, y, loss_fn)",
                   options.micro_batches_per_rank,
                   options.weighting == Weighting::kEqual ? "" : " weighted by samples");
    open = std::make_shared<Call>(*this);
    call = open;
    gathers->begin_forward({});
  } else if (autograd::grad_mode()) {
    RunnerTraffic::open_step(module, &group->traffic());
  }
  LOCKSTEP_CHECK(open->is_in_forward(), "ShardedDataParallel: operator() inside backward");
  const random::MicroBatchGuard micro_batch(group->rank());
  const bool is_reduced = autograd::grad_mode() && local_depth == 0;
  const Tensor y = backwards.add(is_reduced ? micro_batches.buffers().call(run_module) : run_module());
  gathers->end_forward();
  if (gathers->are_direct())
    group->barrier();  // without a backward nothing else keeps ranks from stepping their shards
  if (y.requires_grad() && !y.is_leaf())
    y.register_hook([open](const Tensor&) { return open->begin_backward(), Tensor(); });
  return y;
}

void ShardedDataParallel::State::begin_backward_of_call() {
  if (const std::shared_ptr<Call> open = call.lock()) open->begin_backward();
}

void ShardedDataParallel::State::end_call_with(autograd::Run& run) {
  const std::shared_ptr<Call> open = call.lock();
  if (!open) return;
  open->begin_backward();
  Call::end_with(open, run);
}

void ShardedDataParallel::State::end_call() {
  if (const std::shared_ptr<Call> open = call.lock()) open->end();
}

// Ends a step whose backward failed, or was autograd::grad, before it reached a parameter, or whose parameters the user
// has changed.
void ShardedDataParallel::State::end_failed_call() {
  const std::shared_ptr<Call> open = call.lock();
  if (open && !open->is_ending() && (!open->is_in_forward() || open->is_stale())) open->end();
}

Tensor ShardedDataParallel::operator()(const Tensor& x) {
  return state_->forward([&] { return state_->module(x); });
}

Tensor ShardedDataParallel::operator()(const std::vector<Tensor>& inputs) {
  return state_->forward([&] { return state_->module(inputs); });
}

}  // namespace lockstep::parallel
