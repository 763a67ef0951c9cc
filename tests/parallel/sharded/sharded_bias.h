// Gradients of sharded models whose layers have biases, on any backend: backward writes the gradients of a layer's
// weight and bias at the same time, into a buffer that units share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/groups.h"

namespace sharded_bias {

constexpr std::int64_t kWidth = 8, kRows = 3;  // of the layers; of a micro-batch
// Whether the reduction of a unit ends before backward enters another one differs from step to step.
constexpr int kSteps = 8;
constexpr int kNone = -1;

// A layer that forms a unit. `extra` is used only in the last call of a forward.
struct Layer : ls::nn::Module {
  ls::nn::Linear& linear = add<ls::nn::Linear>("linear", kWidth, kWidth);
  ls::nn::Parameter& extra = add_parameter("extra", ls::full({kWidth}, 0.3));
  mutable bool is_last_call = true;
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = x + ls::tanh(linear(x));
    return is_last_call ? y * *extra : y;
  }
};

struct Net : ls::nn::Module {
  ls::nn::ModuleList& blocks = add<ls::nn::ModuleList>("blocks");
  int skipped = kNone, twice = kNone;  // layers that are not called, and called twice
  Net() {
    for (int i = 0; i < 4; ++i) blocks.push_back(Layer());
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = x;
    for (int i = 0; i < static_cast<int>(blocks.size()); ++i) {
      const auto& layer = dynamic_cast<const Layer&>(blocks[static_cast<std::size_t>(i)]);
      for (int calls = i == skipped ? 0 : i == twice ? 2 : 1; calls > 0; --calls) {
        layer.is_last_call = calls == 1;
        y = layer(y);
      }
    }
    return y;
  }
};

struct Case {
  int stage;
  bool reshard = true;   // .reshard_after_forward
  bool by_call = false;  // operator() and loss.backward() in place of backward(x, y, loss_fn)
  int skipped = kNone;   // the layer that the first micro-batch, that of rank 0, skips
  int twice = kNone;     // the layer that every forward calls twice

  std::string name() const {
    return "stage " + std::to_string(stage) + (reshard ? "" : ", parameters stay") + (by_call ? ", operator()" : "") +
           (skipped == kNone ? "" : ", rank 0 skips a layer") + (twice == kNone ? "" : ", a layer is called twice");
  }
};

// The samples of all micro-batches of a step.
inline ls::Tensor samples(int micro_batches, int step) {
  const std::int64_t rows = micro_batches * kRows;
  return ls::cos(ls::arange(0.0, static_cast<double>(rows * kWidth)) * 0.7 + 0.13 * step).reshape({rows, kWidth});
}

inline ls::Tensor loss_of(const ls::Tensor& y) { return ls::mean(y * y); }

using Gradients = std::vector<std::vector<ls::Tensor>>;  // by step and parameter

// By accumulation in one process.
inline Gradients accumulated(int micro_batches, int skipped, int twice) {
  ls::manual_seed(3);
  Net net;
  net.twice = twice;
  ls::parallel::GradientAccumulation run(net, {.micro_batches = micro_batches});
  Gradients gradients;
  for (int step = 0; step < kSteps; ++step) {
    net.zero_grad();
    net.skipped = skipped;
    const ls::Tensor x = samples(micro_batches, step);
    run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) {
      const ls::Tensor loss = loss_of(net(x));
      net.skipped = kNone;
      return loss;
    });
    std::vector<ls::Tensor>& of_step = gradients.emplace_back();
    for (const ls::nn::Parameter& parameter : net.parameters()) of_step.push_back(parameter->grad().clone());
  }
  return gradients;
}

// The number of this rank's pieces of gradients, over all steps, whose bits are not those of `want`.
inline int wrong_pieces(const Group& group, const Case& of, const Gradients& want) {
  ls::manual_seed(3);
  Net net;
  ls::parallel::ShardedDataParallel run(net, group, {.stage = of.stage, .reshard_after_forward = of.reshard});
  net.skipped = group->rank() == 0 ? of.skipped : kNone;
  net.twice = of.twice;
  int wrong = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (const ls::nn::Parameter& piece : run.parameters()) piece->set_grad(ls::Tensor());
    const ls::Tensor x = samples(group->size(), step).narrow(0, group->rank() * kRows, kRows);
    if (of.by_call) {
      loss_of(run(x)).backward();
    } else {
      run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) { return loss_of(net(x)); });
    }
    std::size_t p = 0;
    for (const ls::parallel::ShardedParameter& piece : run.named_parameters()) {
      const ls::Tensor& whole = want[static_cast<std::size_t>(step)][p++];
      const std::int64_t count = piece.parameter->numel();
      wrong += count > 0 && !same_bits(piece.parameter->grad(), whole.reshape({-1}).narrow(0, piece.first, count));
    }
  }
  return wrong;
}

inline void check_bias_gradients(const Group& group) {
  for (const auto& [skipped, twice] : {std::pair(kNone, kNone), {1, kNone}, {kNone, 1}}) {
    const Gradients want = accumulated(group->size(), skipped, twice);
    for (int stage = 1; stage <= 3; ++stage) {
      for (const bool reshard : {true, false}) {
        if (stage < 3 && !reshard) continue;  // an option of stage 3
        for (const bool by_call : {false, true}) {
          const Case of{.stage = stage, .reshard = reshard, .by_call = by_call, .skipped = skipped, .twice = twice};
          INFO(of.name());
          CHECK(wrong_pieces(group, of, want) == 0);
        }
      }
    }
  }
}

}  // namespace sharded_bias
