// The model of exercise 17: its variants, its training in one process, and units that check what they get.
#pragma once

#include <algorithm>

#include "harness.h"

namespace grader {

using Values = std::vector<ls::Tensor>;  // one flat tensor for each unit

constexpr int kSteps = 3;
constexpr std::int64_t kSamples = 2;  // of a rank in a step
constexpr double kRate = 0.01;

// A linear layer whose weight and bias are in one flat tensor; all but the last one with tanh.
struct Layer {
  std::int64_t in, out;
  int index;
  bool is_last;

  std::int64_t elements() const { return out * (in + 1); }
  ls::Tensor initial() const {
    return ls::sin(ls::arange(elements(), {.dtype = ls::kFloat32}) * 1.7 + (index + 1)) * 0.1;
  }
  ls::Tensor run(const ls::Tensor& flat, const ls::Tensor& x) const {
    const ls::Tensor weight = flat.slice(0, 0, in * out).reshape({in, out}), bias = flat.slice(0, in * out, elements());
    const ls::Tensor y = ls::matmul(x, weight) + bias;
    return is_last ? y : ls::tanh(y);
  }
};

struct Variant {
  int ranks = 3;
  std::vector<std::int64_t> widths = {90, 92, 88, 95, 91, 94};  // units of about the same size: see check_memory
  double phase = 0;                                             // of the data

  std::vector<Layer> layers() const {
    std::vector<Layer> all;
    const int count = static_cast<int>(widths.size()) - 1;
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      all.push_back({.in = widths[at], .out = widths[at + 1], .index = i, .is_last = i == count - 1});
    }
    return all;
  }
  std::int64_t shard(const Layer& layer) const { return (layer.elements() + ranks - 1) / ranks; }  // elements
};

inline Variant variant() {
  Variant v;
  if (seed_of() == 0) return v;
  Dice dice(seed_of());
  v.ranks = 2 + dice.roll(3);
  v.phase = 0.01 * dice.roll(300);
  const auto is_padded = [&](const Layer& layer) { return layer.elements() % v.ranks != 0; };
  do {  // until a unit needs padding
    v.widths.resize(static_cast<std::size_t>(6 + dice.roll(3)));
    for (std::int64_t& width : v.widths) width = 88 + dice.roll(9);
  } while (std::ranges::none_of(v.layers(), is_padded));
  return v;
}

// The samples of all ranks in a step, one rank's after the other's.
inline ls::Tensor batch(const Variant& v, int step, std::int64_t columns) {
  const std::int64_t rows = v.ranks * kSamples;
  return ls::cos(ls::arange(rows * columns, {.dtype = ls::kFloat32}) * 0.37 + step + v.phase).reshape({rows, columns});
}
inline ls::Tensor of_rank(const ls::Tensor& rows, int rank) {
  return rows.slice(0, rank * kSamples, (rank + 1) * kSamples).clone();
}

inline ls::Tensor loss_of(const ls::Tensor& out, const ls::Tensor& y) { return ls::mean((out - y) * (out - y)); }

// --- one process -----------------------------------------------------------------------------------------------------
struct Chain : ls::nn::Module {
  std::vector<Layer> layers;
  explicit Chain(const Variant& v) : layers(v.layers()) {
    for (const Layer& layer : layers) add_parameter(text("unit", layer.index), layer.initial());
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor out = x;
    const auto all = parameters();
    for (std::size_t i = 0; i < layers.size(); ++i) out = layers[i].run(all[i], out);
    return out;
  }
  Values values() const {
    Values all;
    for (const ls::nn::Parameter& p : parameters()) all.push_back(p->detach().clone());
    return all;
  }
  Values gradients() const {
    Values all;
    for (const ls::nn::Parameter& p : parameters()) all.push_back(p->grad().clone());
    return all;
  }
};

// A run of one process on the samples of all ranks.
struct Truth {
  std::vector<Values> parameters;  // before each step, and after the last one
  std::vector<Values> gradients;   // of each step

  explicit Truth(const Variant& v) {
    Chain chain(v);
    ls::optim::Adam optimizer(chain.parameters(), {.lr = kRate});
    par::GradientAccumulation run(chain, {.micro_batches = v.ranks});
    parameters.push_back(chain.values());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      run.backward(batch(v, step, v.widths.front()), batch(v, step, v.widths.back()),
                   [&](const ls::Tensor& x, const ls::Tensor& y) { return loss_of(chain(x), y); });
      gradients.push_back(chain.gradients());
      optimizer.step();
      parameters.push_back(chain.values());
    }
  }
};

// --- units -----------------------------------------------------------------------------------------------------------
// Called when a unit begins to compute. `pass`: "forward" or "backward".
using OnCompute = std::function<void(const std::string& pass, int unit, const ls::Tensor& parameters)>;

class GradedUnit final : public exercises::Unit {
 public:
  GradedUnit(const Layer& layer, OnCompute on_compute) : layer_(layer), on_compute_(std::move(on_compute)) {}

  std::int64_t elements() const override { return layer_.elements(); }
  ls::Tensor initial_parameters() const override { return layer_.initial(); }

  ls::Tensor forward(const ls::Tensor& parameters, const ls::Tensor& x) override {
    begin("forward", parameters, x);
    const std::string name = text("forward of unit ", layer_.index);
    const ls::TraceSpan span(ls::TraceKind::kUser, name);
    const ls::NoGradGuard no_grad;
    input_ = x;
    return layer_.run(parameters, x);
  }

  exercises::UnitGradients backward(const ls::Tensor& parameters, const ls::Tensor& x,
                                    const ls::Tensor& grad) override {
    begin("backward", parameters, x);
    const std::string name = text("backward of unit ", layer_.index);
    require(input_.defined() && ls::equal(x, input_), name, ": the input is not that of its forward");
    require(grad.defined() && grad.shape() == ls::Shape{x.size(0), layer_.out}, name,
            ": expected the gradient of its output, ", ls::Shape{x.size(0), layer_.out}.to_string());
    const ls::TraceSpan span(ls::TraceKind::kUser, name);
    const ls::Tensor leaf_x = x.detach().requires_grad_(), leaf = parameters.detach().requires_grad_();
    const auto gradients = ls::autograd::grad({layer_.run(leaf, leaf_x)}, {leaf_x, leaf}, {.grad_outputs = {grad}});
    input_ = {};
    return {.x = gradients[0], .parameters = gradients[1]};
  }

 private:
  void begin(const std::string& pass, const ls::Tensor& parameters, const ls::Tensor& x) const {
    const std::string where = text(pass, " of unit ", layer_.index, ": ");
    require(parameters.defined(), where, "the parameters are undefined. They have been released, so gather them again");
    require(parameters.shape() == ls::Shape{elements()} && parameters.dtype() == ls::kFloat32, where,
            "the parameters are ", parameters.shape().to_string(), ", expected ", ls::Shape{elements()}.to_string(),
            " f32, without padding");
    require(x.defined() && x.dim() == 2 && x.size(1) == layer_.in, where, "expected an input with ", layer_.in,
            " columns");
    on_compute_(pass, layer_.index, parameters);
  }

  Layer layer_;
  OnCompute on_compute_;
  ls::Tensor input_;  // of forward
};

inline std::vector<std::shared_ptr<exercises::Unit>> units_of(const Variant& v, const OnCompute& on_compute) {
  std::vector<std::shared_ptr<exercises::Unit>> units;
  for (const Layer& layer : v.layers()) units.push_back(std::make_shared<GradedUnit>(layer, on_compute));
  return units;
}

inline void run_step(exercises::Fsdp& fsdp, const Group& group, const Variant& v, int step) {
  const ls::Tensor y = of_rank(batch(v, step, v.widths.back()), group->rank());
  fsdp.backward(of_rank(batch(v, step, v.widths.front()), group->rank()), [&](const ls::Tensor& out) {
    const ls::Tensor leaf = out.detach().requires_grad_();
    return ls::autograd::grad(loss_of(leaf, y), leaf);
  });
}

}  // namespace grader
