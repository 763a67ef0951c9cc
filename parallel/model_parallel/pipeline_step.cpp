#include "lockstep/parallel/model_parallel/pipeline_step_internal.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep::parallel {
namespace {

bool is_backward(ActionKind kind) {
  return kind != ActionKind::kForward && kind != ActionKind::kSendForward && kind != ActionKind::kReceiveForward;
}

}  // namespace

std::optional<BackwardPart> part_of(const ScheduleAction& action) {
  const bool is_first = action.stage == 0;
  if (action.kind == ActionKind::kBackward) return BackwardPart::kWhole;
  if (action.kind == ActionKind::kBackwardWeight) return is_first ? BackwardPart::kWhole : BackwardPart::kWeight;
  if (action.kind == ActionKind::kBackwardInput && !is_first) return BackwardPart::kInput;
  return std::nullopt;
}

PipelineStep::PipelineStep(const PipelineRunner& pipeline, StageMessages& messages, const StagedStep& step)
    : pipeline_(pipeline), stages_(pipeline.stages()), messages_(messages), step_(step), plan_(step.plan) {}

// In an evaluation only forwards have an effect.
bool PipelineStep::is_left_out(const ScheduleAction& action) const {
  return plan_.evaluates && is_backward(action.kind);
}

// A row of a micro-batch without samples. Ranks of other pipelines may have some, and communicate meanwhile.
void PipelineStep::skip(const ScheduleAction& action) {
  const int m = action.micro_batch, chunk = stages_.chunk_of(action.stage);
  if (action.kind == ActionKind::kForward) {
    step_.in_turn.skip_forward(m, chunk);
    if (plan_.evaluates) step_.in_turn.end_evaluation(m, chunk);
  } else if (const auto part = part_of(action)) {
    step_.in_turn.skip_backward(m, chunk, *part);
  }
}

void PipelineStep::run() {
  step_.in_turn.begin(plan_.running());
  step_.losses.assign(static_cast<std::size_t>(plan_.running()), Tensor());
  const std::vector<ScheduleAction>& rows = pipeline_.rows();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const ScheduleAction& action = rows[row];
    if (is_left_out(action)) continue;
    const bool is_reduction = action.kind == ActionKind::kReduce;
    const auto place = [&] {
      const std::string what =
          is_reduction ? "the reductions of" : fmt::format("micro-batch {} in", action.micro_batch);
      return fmt::format("{} stage {} (rank {}, row {} of the schedule: {})", what, action.stage, stages_.rank, row,
                         action.to_string());
    };
    run_at(place, [&] { is_reduction || action.micro_batch < plan_.running() ? run_traced(row) : skip(action); });
  }
  run_at([&] { return fmt::format("the end of the schedule (rank {})", stages_.rank); }, [&] { messages_.end_step(); });
}

void PipelineStep::run_traced(std::size_t row) {
  const ScheduleAction& action = pipeline_.rows()[row];
  const TraceTime begin = TraceTime::now();
  run(action);
  if (begin)
    trace_event(TraceKind::kAction, action.to_string(), begin,
                {.id = static_cast<std::int64_t>(row), .stage = action.stage, .micro_batch = action.micro_batch});
}

// Calls body(). If it throws, the group fails on all ranks: other stages wait for this one in the middle of the step.
void PipelineStep::run_at(FunctionRef<std::string()> place, FunctionRef<void()> body) {
  const auto fail = [&](const std::string& why) {
    if (pipeline_.group) pipeline_.group->fail(fmt::format("{}: {}", plan_.op, why));
  };
  try {
    body();
  } catch (Error& error) {
    error.add_context(place());
    fail(error.what());
    throw;
  } catch (const std::exception& error) {
    fail(fmt::format("{}: {}", place(), error.what()));
    throw;
  } catch (...) {
    fail(place() + ": an exception that is not a std::exception");
    throw;
  }
}

void PipelineStep::run(const ScheduleAction& action) {
  const auto [kind, stage, m] = action;
  if (kind == ActionKind::kReduce) return step_.in_turn.complete(stages_.chunk_of(stage));
  Live& live = live_[{stage, m}];
  switch (kind) {
    case ActionKind::kReceiveForward:
      return put_input(stage, m, messages_.receive(action, Device()));
    case ActionKind::kForward:
      return forward(stage, m);
    case ActionKind::kSendForward:
      messages_.send(action, {live.output, live.output.requires_grad(), live.positions});
      if (plan_.evaluates) live_.erase({stage, m});
      return;
    case ActionKind::kReceiveBackward:
      return put_gradient(stage, m, messages_.receive(action, Device()).tensor);
    case ActionKind::kBackward:
      return backward(action);
    case ActionKind::kSendBackward:
      messages_.send(action, {.tensor = live.input_gradient});
      live.is_sent = true;
      return end_if_complete(stage, m);
    case ActionKind::kBackwardInput:
      return backward_input(action);
    case ActionKind::kBackwardWeight:
      return backward_weight(action);
    default:
      return;
  }
}

// A message's tensor becomes a leaf. Its gradient goes to the stage before as backward makes it: grad() would be
// contiguous.
void PipelineStep::put_input(int stage, int m, StageMessages::Message message) {
  Live& live = live_[{stage, m}];
  live.positions = message.positions;
  live.input = message.tensor.requires_grad_(message.requires_grad && !plan_.evaluates);
  if (!live.input.requires_grad()) return;
  live.input.register_hook([&live](const Tensor& gradient) {
    live.input_gradient = gradient.detach();
    return Tensor();
  });
}

void PipelineStep::forward(int stage, int m) {
  now_ = {stage, m};
  Live& live = live_[now_];
  const int chunk = stages_.chunk_of(stage);
  live.output = step_.in_turn.forward(m, chunk, [&] {
    if (stages_.is_last(stage)) return loss(m);
    Batch inputs = rows(m);
    inputs.pop_back();
    return nn::run_without_hooks(pipeline_.root(), inputs);
  });
  if (stages_.is_last(stage)) {
    step_.losses[static_cast<std::size_t>(m)] = weighted_loss(plan_.op, live.output, plan_.weight(m), !plan_.evaluates);
  } else if (stages_.ranks == 1) {
    put_input(stage + 1, m, {live.output.detach(), live.output.requires_grad(), live.positions});
  }
  if (plan_.evaluates) step_.in_turn.end_evaluation(m, chunk);
  if (plan_.evaluates && (stages_.is_last(stage) || stages_.ranks == 1)) live_.erase({stage, m});
}

Tensor PipelineStep::loss(int m) {
  const Batch micro_batch = rows(m);
  of_loss_ = &micro_batch;
  calls_ = 0;
  const Tensor result = step_.loss_fn(micro_batch);
  of_loss_ = nullptr;
  LOCKSTEP_CHECK(
      calls_ == 1,
      "{}: the loss function did not call the module, so that its result does not depend on the stages before; "
      "call run.module()(x) in it",
      plan_.op);
  return result;
}

Tensor PipelineStep::run_root(const std::vector<Tensor>& inputs) {
  if (of_loss_) {
    LOCKSTEP_CHECK(
        ++calls_ == 1,
        "{}: the loss function called the module twice, but the other stages run a micro-batch once; compute "
        "both results in one forward",
        plan_.op);
    LOCKSTEP_CHECK(
        plan_.evaluates || autograd::grad_mode(),
        "{}: the loss function called the module under a NoGradGuard, and the stages before would get no gradients; "
        "remove it",
        plan_.op);
    LOCKSTEP_CHECK(!random::has_draw_frame(),
                   "{}: the loss function called the module inside autograd::checkpoint, but the other stages do not "
                   "repeat their forward; call checkpoint in modules of the chain",
                   plan_.op);
    const auto same = [](const Tensor& a, const Tensor& b) { return a.ref() == b.ref(); };
    LOCKSTEP_CHECK(
        std::ranges::equal(inputs, std::vector<Tensor>(of_loss_->begin(), of_loss_->end() - 1), same),
        "{}: the loss function called the module with another x than its own, which the first stage does not "
        "see; put what prepares x into the first module of the chain",
        plan_.op);
    LOCKSTEP_CHECK(autocast_dtype() == autocast_,
                   "{}: the loss function changes autocast, which the stages before do not see; construct the "
                   "AutocastGuard before backward is called",
                   plan_.op);
  }
  return run_chain(inputs);
}

// The modules of the stage. With tensor slices, what runs around them goes on as the stage before has left it; the next
// stage goes on with the positions, so that the result of this one is left as it is.
Tensor PipelineStep::run_chain(const std::vector<Tensor>& inputs) {
  const auto s = static_cast<std::size_t>(now_.first);
  Live& live = live_[now_];
  random::SliceContext* const around = random::slice_context();
  if (around && s > 0) around->positions = live.positions;
  Tensor y = live.input;
  for (std::size_t k = stages_.begins[s]; k < stages_.begins[s + 1]; ++k) {
    const nn::Module& link = *stages_.chain[k].module;
    const nn::ReplicaView* const view =
        plan_.evaluates ? nullptr : pipeline_.ties().enter(k, nn::current_replica_view());
    const nn::ReplicaViewGuard shared(view ? view : nn::current_replica_view());
    y = k > 0 || inputs.size() == 1 ? link(k > 0 ? y : inputs[0]) : link(inputs);
  }
  if (!around || stages_.is_last(now_.first)) return y;
  LOCKSTEP_CHECK(!around->is_open(),
                 "{}: stage {} ends between {} (ColwiseParallel), which leaves the columns of this rank, and the layer "
                 "that takes them; put both into one stage with .split_before",
                 plan_.op, s, around->opened_by);
  live.positions = std::exchange(around->positions, 0);
  return y;
}

// B or W: makes gradients of parameters.
void PipelineStep::run_backward(const ScheduleAction& action, FunctionRef<void()> body) {
  const int stage = action.stage, m = action.micro_batch;
  const int chunk = stages_.chunk_of(stage);
  step_.in_turn.backward(m, chunk, *part_of(action), [&] {
    pipeline_.ties().begin(m, plan_.running(), chunk);
    body();
    pipeline_.ties().end(m, plan_.running(), chunk);
  });
  live_[{stage, m}].is_done = true;
}

void PipelineStep::backward(const ScheduleAction& action) {
  const int stage = action.stage, m = action.micro_batch;
  Live& live = live_[{stage, m}];
  run_backward(action, [&] {
    if (stages_.is_last(stage))
      weighted_backward(live.output, plan_.weight(m));
    else if (live.output.requires_grad() && live.gradient.defined())
      live.output.backward(live.gradient);
  });
  pass_gradient(stage, m);
}

// The first stage has no input: all of its backward is left to W.
void PipelineStep::backward_input(const ScheduleAction& action) {
  const int stage = action.stage, m = action.micro_batch;
  Live& live = live_[{stage, m}];
  if (stages_.is_last(stage) && plan_.weight(m) != 1)
    live.gradient = raw::full(live.output.shape(), static_cast<double>(plan_.weight(m)), live.output.options());
  const auto split = [&] {
    if (live.output.requires_grad() && (stages_.is_last(stage) || live.gradient.defined()))
      live.input_gradient = live.split
                                .emplace(live.output, live.gradient,
                                         live.input.defined() && live.input.requires_grad() ? live.input : Tensor())
                                .take_input_gradient();
  };
  if (const auto part = part_of(action))
    step_.in_turn.backward(m, stages_.chunk_of(stage), *part, split);
  else
    split();
  pass_gradient(stage, m);
}

void PipelineStep::backward_weight(const ScheduleAction& action) {
  const int stage = action.stage, m = action.micro_batch;
  Live& live = live_[{stage, m}];
  run_backward(action, [&] {
    if (live.split) live.split->run();
  });
  live.split.reset();
  end_if_complete(stage, m);
}

// The gradient of the input is there: what is left of the micro-batch is its message, and W.
void PipelineStep::pass_gradient(int stage, int m) {
  Live& live = live_[{stage, m}];
  live.input = live.output = live.gradient = Tensor();
  if (stage > 0 && stages_.ranks == 1) put_gradient(stage - 1, m, live.input_gradient);
  end_if_complete(stage, m);
}

void PipelineStep::end_if_complete(int stage, int m) {
  const Live& live = live_[{stage, m}];
  if (live.is_done && (live.is_sent || stage == 0 || stages_.ranks == 1)) live_.erase({stage, m});
}

}  // namespace lockstep::parallel
