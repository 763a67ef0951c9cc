// A step of operator() and a backward that the user calls. It begins with the forward, because units are gathered then.
// It ends with the first backward from the result, or without one when the graph of the result is destroyed.
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/sharded/sharded_access_internal.h"
#include "lockstep/parallel/sharded/sharded_state_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
namespace {

constexpr MicroBatchPlan kPlan = {.op = "ShardedDataParallel", .samples = 1, .micro_batches = 1};

}  // namespace

// Owned by the graph of the result, and by the backward while it runs.
class ShardedDataParallel::State::Call {
 public:
  explicit Call(State& state)
      : access_(state.access), of_pieces_(state.parameters_of_pieces()), trained_(state.micro_batches.parameters()) {
    local_.emplace(trained_);
    // Gradients that the user may still set to zero leave the memory that this step uses.
    for (const nn::Parameter& piece : of_pieces_) {
      if (piece.master().grad().defined()) piece.master().set_grad(raw::clone(piece.master().grad()));
    }
    state.begin_step(kPlan, *local_);
    state.micro_batches.sets().begin(0, 1);
    state.begin_gathers();
    version_ = version_of(state);
  }
  ~Call() { end(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool has_backward() const { return earlier_.has_value(); }
  // Whether a backward runs that will end the step.
  bool is_ending() const { return has_run_; }
  // Whether the parameters were changed since the step began.
  bool is_stale() const { return version_ != version_of(*access_->state); }
  // Backward has reached the result, or a parameter.
  void begin_backward() {
    LOCKSTEP_CHECK(access_->state, "ShardedDataParallel: backward after the ShardedDataParallel was destroyed");
    LOCKSTEP_CHECK(
        is_open_,
        "ShardedDataParallel: a second backward in a step that is over; add the losses and call backward once");
    if (has_backward()) return;
    LOCKSTEP_CHECK(!is_stale(),
                   "ShardedDataParallel: parameters were changed between operator() and its backward; call the "
                   "optimizer's step() after backward");
    State& state = *access_->state;
    earlier_.emplace(of_pieces_);
    state.gathers->begin_backward();
    state.reducing = state.local_depth == 0;
  }
  // The step ends with the backward, also after an exception.
  static void end_with(const std::shared_ptr<Call>& call, autograd::Run& run) {
    if (std::exchange(call->has_run_, true)) return;
    const std::shared_ptr<Call> ending(call.get(), [call](Call* ended) { ended->end(); });
    run.at_end([ending] { ending->finish(); });
    run.at_error([access = call->access_](const std::exception& error) {
      if (State* const state = access->state) state->end_failed_step(error);
    });
  }
  void end() {
    if (!std::exchange(is_open_, false)) return;
    if (State* const state = access_->state) {
      state->gathers->end_step();
      state->reset_step();
      if (has_backward() && !is_done_) state->drop_gradients();
      state->call.reset();
    }
    earlier_.reset();  // restores gradients that the step has not taken
    local_.reset();
  }

 private:
  static std::uint64_t version_of(const State& state) {
    std::uint64_t sum = 0;
    for (const FlatParameters* flat : state.trained) sum += flat->master.impl().storage->version();
    return sum;
  }
  void finish() {
    State& state = *access_->state;
    state.gathers->end_backward();
    state.gathers->end_step();
    if (state.reducing) {
      state.finish_step(kPlan, {}, *local_);
      earlier_->add_back();
    } else {
      state.finish_local(kPlan, *local_);
    }
    is_done_ = true;
  }

  std::shared_ptr<ShardedAccessSupplier> access_;
  std::vector<nn::Parameter> of_pieces_, trained_;
  std::optional<AccumulatedGradients> local_;    // of steps in no_sync
  std::optional<AccumulatedGradients> earlier_;  // of the pieces, since backward began
  std::uint64_t version_ = 0;                    // of the parameters
  bool is_open_ = true, has_run_ = false, is_done_ = false;
};

Tensor ShardedDataParallel::State::forward(FunctionRef<Tensor()> run_module) {
  return run_or_end(*this, [&] { return begin_call(run_module); });
}

Tensor ShardedDataParallel::State::begin_call(FunctionRef<Tensor()> run_module) {
  end_failed_call();
  std::shared_ptr<Call> open = call.lock();
  if (!open) {
    check_usable();
    LOCKSTEP_CHECK(!joining, "ShardedDataParallel: operator() inside join; call backward(x, y, loss_fn)");
    LOCKSTEP_CHECK(options.micro_batches_per_rank == 1 && options.weighting == Weighting::kEqual,
                   "ShardedDataParallel: operator() with {} micro-batches per rank{}; call backward(x, y, loss_fn)",
                   options.micro_batches_per_rank,
                   options.weighting == Weighting::kEqual ? "" : " weighted by samples");
    open = std::make_shared<Call>(*this);
    call = open;
    gathers->begin_forward();
  }
  LOCKSTEP_CHECK(!open->has_backward(), "ShardedDataParallel: operator() inside backward");
  const random::MicroBatchGuard micro_batch(group->rank());
  const Tensor y = run_module();
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

// The leaf hook of a parameter, in a backward that the user called.
void ShardedDataParallel::State::enter_call(autograd::Run& run) {
  const std::shared_ptr<Call> open = call.lock();
  if (!open) return;
  open->begin_backward();
  Call::end_with(open, run);
}

void ShardedDataParallel::State::end_failed_step(const std::exception& error) {
  failures.tell({group.get(), reductions.get()}, "ShardedDataParallel", error);
}

void ShardedDataParallel::State::end_call() {
  if (const std::shared_ptr<Call> open = call.lock()) open->end();
}

// Ends a step whose backward failed, or was autograd::grad, before it reached a parameter, or whose parameters the user
// has changed.
void ShardedDataParallel::State::end_failed_call() {
  const std::shared_ptr<Call> open = call.lock();
  if (open && !open->is_ending() && (open->has_backward() || open->is_stale())) open->end();
}

Tensor ShardedDataParallel::operator()(const Tensor& x) {
  return state_->forward([&] { return state_->module(x); });
}

Tensor ShardedDataParallel::operator()(const std::vector<Tensor>& inputs) {
  return state_->forward([&] { return state_->module(inputs); });
}

}  // namespace lockstep::parallel
