// An exception on one rank while the others, which have other slices of the model, wait in a layer or for gradients.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include "tests/support/groups.h"

// The gradients of `whole` need those of all slices of `up`.
struct LayersInSlices : ls::nn::Module {
  ls::nn::Linear& whole = add<ls::nn::Linear>("whole", 8, 8);
  ls::nn::Linear& up = add<ls::nn::Linear>("up", 8, 8);
  ls::nn::Linear& down = add<ls::nn::Linear>("down", 8, 8);
  ls::Tensor forward(const ls::Tensor& x) const override { return down(ls::gelu(up(whole(x)))); }
};

// All ranks throw an error with the text, and where the exception was not their own, with its rank.
inline void check_failing_slices(const std::string& backend) {
  namespace par = ls::parallel;
  for (const bool in_backward : {false, true}) {
    with_group(backend, 2, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"tp", 2}});
      LayersInSlices net;
      par::parallelize(net, mesh["tp"], {.plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
      par::GradientAccumulation run(net, {.micro_batches = 2});
      const ls::Tensor batch = ls::ones({4, 8}).requires_grad_();
      const auto step = [&](bool fails) {
        run.backward(batch, batch, [&](const ls::Tensor& x, const ls::Tensor& y) {
          if (fails && !in_backward) throw std::runtime_error("no more input");
          const ls::Tensor out = net(x);
          if (fails)
            out.register_hook([](const ls::Tensor&) -> ls::Tensor { throw std::runtime_error("no more input"); });
          return ls::nn::mse_loss(out, y);
        });
      };
      step(false);
      std::string text;
      try {
        step(group->rank() == 1);
      } catch (const std::exception& error) {
        text = error.what();
      }
      CHECK_MESSAGE(text.find("no more input") != std::string::npos, text);
      CHECK_MESSAGE((group->rank() == 1 || text.find("rank 1") != std::string::npos), text);
    });
  }
}

// A backward of the user's own that fails on one rank before it reaches a layer.
enum class EarlyBackward { kHook, kFunction, kNoSync, kGrad };

struct FailingBackward : ls::autograd::Function<FailingBackward> {
  static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x) { return x * 2; }
  static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor&) {
    throw std::runtime_error("no more input");
  }
};

template <class Run>
void check_early_backward(const Group& group, Run& run, EarlyBackward form, bool is_sharded) {
  const Group others = group->duplicate();
  const ls::Tensor x = ls::ones({4, 8}).requires_grad_();
  const auto step = [&](bool fails) {
    std::optional<ls::parallel::NoSync> guard;
    if (form == EarlyBackward::kNoSync) guard.emplace(run.no_sync());
    const ls::Tensor loss = run(x).square().mean();
    if (fails && form == EarlyBackward::kHook)
      loss.register_hook([](const ls::Tensor&) -> ls::Tensor { throw std::runtime_error("no more input"); });
    const ls::Tensor last = fails && form != EarlyBackward::kHook ? FailingBackward::apply(loss) : loss;
    if (form == EarlyBackward::kGrad)
      ls::autograd::grad(last, x);
    else
      last.backward();
  };
  step(false);
  const int failing = group->size() - 1;
  std::string text;
  try {
    step(group->rank() == failing);
  } catch (const std::exception& error) {
    text = error.what();
  }
  others->barrier();  // the others have their error without another call of this rank
  CAPTURE(static_cast<int>(form));
  CAPTURE(is_sharded);
  // For ranks along dp the others wait in a reduction, and with distributed parameters at the end of every step.
  const bool is_reduced = form == EarlyBackward::kHook || form == EarlyBackward::kFunction,
             waits_for_all = is_reduced || (is_sharded && form == EarlyBackward::kNoSync),
             waits = waits_for_all || group->size() == 2 || group->rank() >= 2;
  const bool has_error = text.find("no more input") != std::string::npos,
             has_rank = text.find(fmt::format("rank {} has failed", failing)) != std::string::npos ||
                        text.find(fmt::format("(global rank {}) has failed", failing)) != std::string::npos;
  CHECK_MESSAGE((waits ? has_error && (has_rank || group->rank() == failing) : text.empty()), text);
}

// A call of a training mode that fails on one rank before a layer has run there.
enum class EarlyError { kBackward, kNoSync, kEvaluate, kForward, kClip };

template <class Run>
void check_early_error(const Group& group, Run& run, EarlyError form, bool is_sharded) {
  const Group others = group->duplicate();
  const auto call = [&](bool fails) {
    const bool has_wrong_rows = fails && form != EarlyError::kClip;
    const ls::Tensor x = ls::ones({4, form == EarlyError::kForward && fails ? 9 : 8}),
                     y = ls::ones({has_wrong_rows ? 3 : 4, 8});
    const auto loss = [&](const ls::Tensor& in, const ls::Tensor& target) {
      return ls::nn::mse_loss(run.module()(in), target);
    };
    std::optional<ls::parallel::NoSync> guard;
    if (form == EarlyError::kNoSync) guard.emplace(run.no_sync());
    if (form == EarlyError::kEvaluate)
      run.evaluate(x, y, loss);
    else if (form == EarlyError::kForward)
      run(x).sum().backward();
    else
      run.backward(x, y, loss);
    if (form == EarlyError::kClip) run.clip_grad_norm_(fails ? -1 : 1);
  };
  call(false);
  const std::string want = form == EarlyError::kForward ? "inner sizes differ"
                           : form == EarlyError::kClip  ? "max_norm is -1"
                                                        : "with different numbers of rows";
  std::string text;
  try {
    call(group->rank() == group->size() - 1);
  } catch (const std::exception& error) {
    text = error.what();
  }
  others->barrier();  // the others have their error without another call of this rank
  CAPTURE(static_cast<int>(form));
  // In no_sync and to clip, ranks with whole parameters wait only for those that have other slices.
  const bool waits_for_all = is_sharded || (form != EarlyError::kNoSync && form != EarlyError::kClip),
             waits = waits_for_all || group->size() == 2 || group->rank() >= 2;
  CHECK_MESSAGE((text.find(want) != std::string::npos || (!waits && text.empty())), text);
}

// Calls check(group, run, is_sharded) on the ranks of a group of its own for every mode, with 1 and 2 ranks along dp.
template <class Check>
void in_every_mode(const std::string& backend, const Check& check) {
  namespace par = ls::parallel;
  for (const int dp : {1, 2}) {
    for (const int mode : {0, 1, 2}) {
      if (mode == 0 && dp > 1) continue;
      with_group(backend, 2 * dp, [&](const Group& group) {
        const par::DeviceMesh mesh(group, {{"dp", dp}, {"tp", 2}});
        LayersInSlices net;
        par::parallelize(net, mesh["tp"], {.plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
        CAPTURE(mode);
        if (mode == 0) {
          par::GradientAccumulation run(net);
          check(group, run, /*is_sharded=*/false);
        } else if (mode == 1) {
          par::DistributedDataParallel run(net, mesh["dp"].group());
          check(group, run, /*is_sharded=*/false);
        } else {
          par::ShardedDataParallel run(net, mesh["dp"].group());
          check(group, run, /*is_sharded=*/true);
        }
      });
    }
  }
}

// All ranks of all groups get the error, and none waits for the rank until the time-out.
inline void check_early_errors(const std::string& backend) {
  for (const auto form :
       {EarlyError::kBackward, EarlyError::kNoSync, EarlyError::kEvaluate, EarlyError::kForward, EarlyError::kClip})
    in_every_mode(backend, [form](const Group& group, auto& run, bool is_sharded) {
      check_early_error(group, run, form, is_sharded);
    });
}

// The same for a backward that the user calls.
inline void check_early_backwards(const std::string& backend) {
  for (const auto form : {EarlyBackward::kHook, EarlyBackward::kFunction, EarlyBackward::kNoSync, EarlyBackward::kGrad})
    in_every_mode(backend, [form](const Group& group, auto& run, bool is_sharded) {
      check_early_backward(group, run, form, is_sharded);
    });
}
