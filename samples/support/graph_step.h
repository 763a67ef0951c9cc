// --cuda-graph: captures one training step as a CUDA graph and replays it for the others.
#pragma once

#include <lockstep/lockstep.h>

#include <optional>

#include "support/options.h"

namespace samples {

class GraphStep {
 public:
  GraphStep(const Options& options, lockstep::Device device) : is_wanted_(options.cuda_graph), device_(device) {}

  // loss = step(x, y), by replay if possible. The first step, which allocates and initialises everything, and a
  // smaller last batch of an epoch are not replayed.
  template <class F>
  lockstep::Tensor operator()(const lockstep::Tensor& x, const lockstep::Tensor& y, F step) {
    if (!is_wanted_) return step(x, y);
    if (!x_.defined()) {
      x_ = lockstep::empty(x.shape(), {.dtype = x.dtype(), .device = device_});
      y_ = lockstep::empty(y.shape(), {.dtype = y.dtype(), .device = device_});
      return step(x, y);
    }
    if (x.shape() != x_.shape()) return step(x, y);
    x_.copy_(x);
    y_.copy_(y);
    if (graph_) {
      graph_->replay();
    } else {
      graph_.emplace(device_);
      graph_->capture([&] { loss_ = step(x_, y_); }, {.warm_up = false});
    }
    return loss_;
  }

 private:
  bool is_wanted_;
  lockstep::Device device_;
  lockstep::Tensor x_, y_, loss_;  // batch and loss of the captured step
  std::optional<lockstep::CudaGraph> graph_;
};

}  // namespace samples
