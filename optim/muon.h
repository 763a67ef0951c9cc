/// \file
/// Muon, equivalent to torch.optim.Muon: momentum whose matrix is made orthogonal.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

/// By which factor Muon multiplies the learning rate of a matrix (rows, columns): sqrt(max(1, rows / columns)); 0.2
/// sqrt(max(rows, columns)); or sqrt(rows / columns).
enum class MuonScale : std::uint8_t { kOriginal, kMatchRmsAdamW, kSpectralUnclamped };

struct MuonOptions {
  double lr = 1e-3;                                     ///< learning rate
  double weight_decay = 0.1;                            ///< each step multiplies parameters by 1 - lr weight_decay
  double momentum = 0.95;                               ///< decay rate of the mean of gradients
  bool nesterov = true;                                 ///< Nesterov momentum
  double ns_a = 3.4445, ns_b = -4.7750, ns_c = 2.0315;  ///< coefficients of the Newton-Schulz iteration
  double eps = 1e-7;                                    ///< smallest norm that the momentum is divided by
  int ns_steps = 5;                                     ///< iterations, below 100
  MuonScale adjust_lr_fn = MuonScale::kOriginal;        ///< factor of lr
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct MuonGroup {
  std::vector<nn::Parameter> params = {};             ///< the group's parameters
  std::optional<double> lr = std::nullopt;            ///< learning rate
  std::optional<double> weight_decay = std::nullopt;  ///< see MuonOptions
  std::optional<double> momentum = std::nullopt;      ///< see MuonOptions
};

/// m = momentum m + (1 - momentum) g; then p -= lr weight_decay p + scale lr NS(g (1 - momentum) + m momentum), or NS(m)
/// without nesterov. NS makes a matrix nearly orthogonal: X = X / norm(X), then ns_steps times X = a X + (b X X^T + c (X
/// X^T)^2) X, in bf16 as in PyTorch. The state m is saved as "momentum_buffer". (K. Jordan et al., 2024)
///
/// Throws InvalidArgument for an option out of range, for a parameter that is no matrix, for pieces of a
/// ShardedDataParallel and slices of tensor parallelism, whose steps would need the whole matrix, if there are no
/// parameters, if a parameter is given twice, and for a step in a CUDA graph.
class Muon : public Optimizer {
 public:
  explicit Muon(const Groups<MuonGroup>& params, const MuonOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const MuonGroup& group);

 private:
  void check_options(std::span<const double> options) const override;

  MuonOptions defaults_;
};

}  // namespace lockstep::optim
