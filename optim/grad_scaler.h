/// \file
/// Gradient scaling, for gradients that are too small for f16.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/nn/files/state_dict.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// The defaults are PyTorch's.
struct GradScalerOptions {
  double init_scale = 65536.0;  ///< the first scale, a normal number in f32
  double growth_factor = 2.0;   ///< multiplies the scale after `growth_interval` steps in a row with finite gradients
  double backoff_factor = 0.5;  ///< multiplies the scale after a step whose gradients are not finite
  int growth_interval = 2000;   ///< number of steps
  bool enabled = true;          ///< false: every scale is 1, and no step is left out
};

/// Multiplies the loss, and so all gradients, by a scale, because small gradients are 0 in f16; divides them by it before
/// the optimizer's step, and leaves out steps whose gradients are infinite or NaN. (Micikevicius et al., 2018)
///
///     optim::GradScaler scaler;
///     {
///       const AutocastGuard autocast(kFloat16);
///       run.backward(x, y, [&](const Tensor& x, const Tensor& y) { return scaler.scale(criterion(run.module()(x), y)); });
///     }
///     scaler.unscale_(optimizer, run);  // only before clipping
///     run.clip_grad_norm_(1.0);
///     scaler.step(optimizer, run);
///     scaler.update();
///
/// Gradients count as finite if their norm is, which clip_grad_norm_ computes in f64. With a training mode it is the norm of
/// the gradients of all its parameters on all ranks, so all ranks leave out the same steps, of all its optimizers; all
/// ranks must call unscale_ and step. Inside `join`, JoinOptions::shadow_step must do the same, update() too. Without a
/// training mode, as `scaler.step(optimizer)`, the optimizer must have whole parameters. The loss that `backward` returns is
/// scaled, too. To resume, save state_dict(), for example as `.extra` of a checkpoint.
class GradScaler {
 public:
  /// Throws InvalidArgument for a scale that is not a normal number of f32, a growth factor below 1, a backoff factor
  /// outside (0, 1], and an interval below 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// The loss times the scale; in f32, if the loss is f16 or bf16. Throws InvalidArgument in a CUDA graph, which would
  /// keep the scale of its capture.
  Tensor scale(const Tensor& loss) const;
  double get_scale() const;                             ///< the current scale; 1 if not enabled
  bool is_enabled() const { return options_.enabled; }  ///< GradScalerOptions::enabled

  /// Divides the optimizer's gradients by the scale; of gradients that are not finite, nothing is left. Throws
  /// InvalidArgument if that was done since the last update(), for gradients of f16, if the optimizer has one rank's part of
  /// a model, and for a parameter that optimizer.step() refuses.
  void unscale_(Optimizer& optimizer);
  /// The same for an optimizer with parameters of a training mode, which may be one rank's part. All ranks must call it.
  /// Throws InvalidArgument if the optimizer has another parameter.
  template <class Mode>
  void unscale_(Optimizer& optimizer, Mode& run) {
    if (!options_.enabled) return;
    divide(optimizer, run.parameters());
    find(optimizer)->is_finite = is_finite(run.clip_grad_norm_(kNoLimit));
  }

  /// Calls `optimizer.step()`, unless a gradient of the optimizer is not finite. Divides the gradients by the scale before, if
  /// unscale_() has not. Returns whether it stepped. Throws InvalidArgument if it did since the last update(), and as
  /// unscale_().
  bool step(Optimizer& optimizer);
  /// The same, unless a gradient of `run` on any rank is not finite. All ranks must call it.
  template <class Mode>
  bool step(Optimizer& optimizer, Mode& run) {
    if (!is_unscaled(optimizer)) unscale_(optimizer, run);
    return step_if_finite(optimizer);
  }

  /// Sets the scale for the next step, after those of all optimizers. Throws InvalidArgument without a step() or unscale_()
  /// since the last update().
  void update();

  /// "scale", "growth_factor", "backoff_factor", "growth_interval" and "_growth_tracker", PyTorch's names (f64 and i64; 0-d).
  /// Empty if not enabled.
  StateDict state_dict() const;
  /// Throws InvalidArgument, and changes nothing, if a name is missing or a value out of range. Does nothing if not enabled.
  void load_state_dict(const StateDict& state);

 private:
  static constexpr double kNoLimit = std::numeric_limits<double>::max();
  // An optimizer whose gradients have been divided since the last update.
  struct Entry {
    const Optimizer* optimizer;
    bool is_finite = false, has_stepped = false;
  };
  static bool is_finite(double norm);  // here without <cmath>, which is large
  Entry* find(const Optimizer& optimizer);
  bool is_unscaled(const Optimizer& optimizer);
  // Divides the gradients, and adds an entry. Throws InvalidArgument if a parameter is not in the list.
  void divide(const Optimizer& optimizer, const std::vector<nn::Parameter>& of_run);
  bool step_if_finite(Optimizer& optimizer);

  GradScalerOptions options_;
  double scale_;
  std::int64_t finite_steps_ = 0;  // in a row
  std::vector<Entry> entries_;
};

}  // namespace lockstep::optim
