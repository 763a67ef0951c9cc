/// \file
/// Averages of a model's parameters over training: EMA and SWA.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/nn/files/state_dict.h"
#include "lockstep/nn/module.h"

namespace lockstep::optim {

struct AveragedModelOptions {
  /// Exponential moving average: average = decay average + (1 - decay) parameter. Without it, the mean of all updates.
  std::optional<double> decay = std::nullopt;
  bool use_buffers = false;  ///< averages the buffers, too; otherwise copies them from the model
};

/// Keeps the average of a model's parameters in a second module of the same class, for evaluation:
///
///     Net net, average;
///     optim::AveragedModel ema(average, {.decay = 0.999});
///     ... optimizer.step(); ema.update_parameters(net);
///
/// The first update copies the model. PyTorch's constructor copies the module; here the caller constructs it, and it must
/// outlive the AveragedModel. (Polyak and Juditsky, 1992; Izmailov et al., 2018)
class AveragedModel {
 public:
  /// Throws InvalidArgument for a decay outside [0, 1].
  explicit AveragedModel(nn::Module& module, const AveragedModelOptions& options = {});

  /// Adds the model's current parameters to the average. Throws InvalidArgument, and changes nothing, if their names or
  /// shapes differ, or if they are distributed over ranks.
  void update_parameters(const nn::Module& model);
  nn::Module& module() const { return module_; }           ///< the averages
  std::int64_t n_averaged() const { return n_averaged_; }  ///< number of updates

  /// "n_averaged" (i64), and the module's state as "module.<name>", as in PyTorch. The tensors share memory with it.
  StateDict state_dict() const;
  /// Copies the state. Throws InvalidArgument, and changes nothing, if it does not match.
  void load_state_dict(const StateDict& state);

 private:
  nn::Module& module_;
  AveragedModelOptions options_;
  std::int64_t n_averaged_ = 0;
};

}  // namespace lockstep::optim
