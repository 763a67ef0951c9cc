// An exception on one rank while the others, which have other slices of the model, wait in a layer or for gradients.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "tests/support/groups.h"

struct LayersInSlices : ls::nn::Module {
  ls::nn::Linear& up = add<ls::nn::Linear>("up", 8, 8);
  ls::nn::Linear& down = add<ls::nn::Linear>("down", 8, 8);
  ls::Tensor forward(const ls::Tensor& x) const override { return down(ls::gelu(up(x))); }
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

// A call of a training mode that fails on one rank before a layer has run there.
enum class EarlyError { kBackward, kNoSync, kEvaluate, kForward, kClip };

template <class Run>
void check_early_error(const Group& group, Run& run, EarlyError form, bool is_sharded) {
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
  const std::string want = form == EarlyError::kForward ? "expected 8 columns"
                           : form == EarlyError::kClip  ? "max_norm is -1"
                                                        : "with different numbers of rows";
  std::string text;
  try {
    call(group->rank() == group->size() - 1);
  } catch (const std::exception& error) {
    text = error.what();
  }
  CAPTURE(static_cast<int>(form));
  // In no_sync and to clip, ranks with whole parameters wait only for those that have other slices.
  const bool waits_for_all = is_sharded || (form != EarlyError::kNoSync && form != EarlyError::kClip),
             waits = waits_for_all || group->size() == 2 || group->rank() >= 2;
  CHECK_MESSAGE((text.find(want) != std::string::npos || (!waits && text.empty())), text);
}

// All ranks of all groups get the error, and none waits for the rank until the time-out.
inline void check_early_errors(const std::string& backend) {
  namespace par = ls::parallel;
  for (const auto form :
       {EarlyError::kBackward, EarlyError::kNoSync, EarlyError::kEvaluate, EarlyError::kForward, EarlyError::kClip}) {
    for (const int dp : {1, 2}) {
      for (const int mode : {0, 1, 2}) {
        if (mode == 0 && dp > 1) continue;
        with_group(backend, 2 * dp, [&](const Group& group) {
          const par::DeviceMesh mesh(group, {{"dp", dp}, {"tp", 2}});
          LayersInSlices net;
          par::parallelize(net, mesh["tp"],
                           {.plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
          CAPTURE(mode);
          if (mode == 0) {
            par::GradientAccumulation run(net);
            check_early_error(group, run, form, /*is_sharded=*/false);
          } else if (mode == 1) {
            par::DistributedDataParallel run(net, mesh["dp"].group());
            check_early_error(group, run, form, /*is_sharded=*/false);
          } else {
            par::ShardedDataParallel run(net, mesh["dp"].group());
            check_early_error(group, run, form, /*is_sharded=*/true);
          }
        });
      }
    }
  }
}
