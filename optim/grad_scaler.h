/// \file
/// Gradient scaling, for gradients that are too small for f16.
#pragma once

#include <limits>
#include <vector>

#include "lockstep/nn/files/state_dict.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The defaults are PyTorch's.
struct GradScalerOptions {
  double init_scale = 65536.0;  ///< the first scale
  double growth_factor =
      2.0;  ///< the scale is multiplied by it after `growth_interval` steps in a row with finite gradients
  double backoff_factor = 0.5;  ///< the scale is multiplied by it after a step whose gradients are not finite
  int growth_interval = 2000;   ///< number of steps
  bool enabled = true;          ///< false: every scale is 1, and no step is left out
};

/// Multiplies the loss, and so all gradients, by a scale, because small gradients are 0 in f16; divides them by it before
/// the optimizer's step, and leaves out steps whose gradients are infinite or NaN. (Micikevicius et al., 2018)
///
///     optim::GradScaler scaler;
///     run.backward(x, y, [&](const Tensor& x, const Tensor& y) {
///       AutocastGuard autocast(kFloat16);
///       return scaler.scale(criterion(run.module()(x), y));
///     });
///     scaler.unscale_(optimizer, run);  // only before clipping
///     run.clip_grad_norm_(1.0);
///     scaler.step(optimizer, run);
///     scaler.update();
///
/// Gradients count as finite if their norm is, which clip_grad_norm_ computes in f64. All ranks have the same norm of the
/// gradients of all ranks, and so leave out the same steps: all must call these functions. Without a training mode, as
/// `scaler.step(optimizer)`, the optimizer must have whole parameters. The loss that `backward` returns is scaled, too.
class GradScaler {
 public:
  /// Throws InvalidArgument for a scale or factor that is not above 0 and finite, and for an interval below 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  Tensor scale(const Tensor& loss) const;               ///< the loss times the scale
  double get_scale() const;                             ///< the current scale; 1 if not enabled
  bool is_enabled() const { return options_.enabled; }  ///< GradScalerOptions::enabled

  /// Divides the gradients by the scale. Throws InvalidArgument if that was done since the last update(), and if the
  /// optimizer has one rank's part of a model.
  void unscale_(Optimizer& optimizer);
  /// The same for the optimizer of a training mode, of one rank's part, too.
  template <class Mode>
  void unscale_(Optimizer& optimizer, Mode& run) {
    if (begin_unscale(optimizer)) record(optimizer, run.clip_grad_norm_(kNoLimit));
  }

  /// Calls `optimizer.step()`, unless a gradient is not finite. Divides the gradients by the scale before, if unscale_() has
  /// not. Returns whether it stepped. Throws InvalidArgument if it was called since the last update(), and as unscale_().
  bool step(Optimizer& optimizer);
  /// The same for the optimizer of a training mode, of one rank's part, too.
  template <class Mode>
  bool step(Optimizer& optimizer, Mode& run) {
    if (!is_unscaled(optimizer)) unscale_(optimizer, run);
    return step_if_finite(optimizer);
  }

  /// Sets the scale for the next step, after those of all optimizers. Throws InvalidArgument without a step() or unscale_()
  /// since the last update().
  void update();

  /// "scale", "growth_factor", "backoff_factor", "growth_interval" and "_growth_tracker", PyTorch's names (f64 and i64; 0-d).
  StateDict state_dict() const;
  /// Throws InvalidArgument, and changes nothing, if a name is missing or a value out of range.
  void load_state_dict(const StateDict& state);

 private:
  static constexpr double kNoLimit = std::numeric_limits<double>::max();
  // An optimizer of this step.
  struct Entry {
    const Optimizer* optimizer;
    bool is_finite, has_stepped = false;
  };
  Entry* find(const Optimizer& optimizer);
  bool is_unscaled(const Optimizer& optimizer);
  bool begin_unscale(const Optimizer& optimizer);  // false if there is nothing to do
  void record(const Optimizer& optimizer, double norm);
  bool step_if_finite(Optimizer& optimizer);

  GradScalerOptions options_;
  double scale_;
  std::int64_t finite_steps_ = 0;  // in a row
  std::vector<Entry> entries_;
};

}  // namespace lockstep::optim
