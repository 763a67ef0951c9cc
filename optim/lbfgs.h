/// \file
/// L-BFGS, equivalent to torch.optim.LBFGS.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// How LBFGS chooses the length of a step along its direction.
enum class LineSearch : std::uint8_t {
  kNone,         ///< lr
  kStrongWolfe,  ///< a search from lr on, until the strong Wolfe conditions hold (Nocedal and Wright, 2006, section 3.5)
};

struct LBFGSOptions {
  double lr = 1;               ///< learning rate
  std::int64_t max_iter = 20;  ///< maximum number of iterations in a step
  std::optional<std::int64_t> max_eval =
      std::nullopt;                               ///< maximum number of calls of the closure in a step; 5/4 max_iter
  double tolerance_grad = 1e-7;                   ///< a step ends when the largest absolute gradient is at most this
  double tolerance_change = 1e-9;                 ///< a step ends when the largest change of an element is at most this
  std::int64_t history_size = 100;                ///< number of past iterations that approximate the Hessian
  LineSearch line_search_fn = LineSearch::kNone;  ///< kNone or kStrongWolfe
};

/// Limited-memory BFGS. Each step runs several iterations, and calls the closure in each of them:
///
///     optimizer.step([&] { optimizer.zero_grad(); Tensor loss = mse_loss(net(x), y); loss.backward(); return loss; });
///
/// The closure should be deterministic. In a job of several ranks it must return the same loss on all of them, for example
/// the result of DistributedDataParallel::backward. (Liu and Nocedal, 1989)
///
/// All parameters form one group, of one dtype on one device. Throws InvalidArgument for a negative or infinite lr or
/// tolerance, for counts below 1, if there are no parameters, if a parameter is given twice, and for the parameters of a
/// ShardedDataParallel: the algorithm needs whole gradients.
class LBFGS : public Optimizer {
 public:
  explicit LBFGS(const std::vector<nn::Parameter>& params, const LBFGSOptions& options = {});

  /// Runs up to max_iter iterations. Returns the loss of the first call of the closure.
  Tensor step(FunctionRef<Tensor()> closure) override;
  /// Throws InvalidArgument: a step needs the closure.
  void step() override;

 private:
  using Evaluate = FunctionRef<double()>;  // runs the closure and returns the loss

  // A point on the line of a search: its distance, the loss, the directional derivative and the flat gradient.
  struct Point {
    double t, loss, slope;
    Tensor gradient;
  };
  // Named as in PyTorch; tensors are 1-D, over all parameters in order.
  struct State {
    std::int64_t func_evals = 0, n_iter = 0;
    double t = 0, h_diag = 1, prev_loss = 0;
    Tensor d, prev_flat_grad;
    std::vector<double> ro;
    std::vector<Tensor> old_dirs, old_stps;  // changes of the gradient, and of the parameters
  };

  void check_options(std::span<const double> options) const override;
  void save_common(StateDict& dict, const std::vector<std::string>& labels) const override;
  Callback<void()> prepare_common(const StateReader& reader, const std::vector<std::string>& labels) override;

  Tensor flat_gradient() const;
  void move_parameters(double t, const Tensor& direction) const;
  Point evaluate_at(double t, const Tensor& direction, Evaluate evaluate) const;
  Point search(const Point& start, double t, const Tensor& direction, std::int64_t max_evals, Evaluate evaluate,
               std::int64_t& evals) const;
  Tensor next_direction(const Tensor& gradient);
  void follow(const Tensor& like);

  State state_;
};

}  // namespace lockstep::optim
