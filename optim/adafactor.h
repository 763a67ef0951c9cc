/// \file
/// Adafactor, equivalent to torch.optim.Adafactor: second moments of matrices as products of a column and a row.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct AdafactorOptions {
  double lr = 1e-2;                           ///< upper limit of the relative step
  double beta2_decay = -0.8;                  ///< step t has the weight t^beta2_decay in the second moments; at most 0
  std::optional<double> eps1 = std::nullopt;  ///< smallest second moment's root; the machine epsilon unless given
  double eps2 = 1e-3;                         ///< smallest size of a parameter that steps are relative to
  double d = 1;                               ///< largest root mean square of an update; at least 1
  double weight_decay = 0;                    ///< each step multiplies parameters by 1 - lr weight_decay
};

/// A group of parameters with its own options. Options that are not set have the optimizer's values.
struct AdafactorGroup {
  std::vector<nn::Parameter> params = {};             ///< the group's parameters
  std::optional<double> lr = std::nullopt;            ///< see AdafactorOptions
  std::optional<double> weight_decay = std::nullopt;  ///< see AdafactorOptions
};

/// p -= alpha u / max(1, rms(u) / d) with u = g / sqrt(max(v, eps1^2)) and alpha = max(eps2, rms(p)) min(lr, 1 / sqrt(t)).
/// v are running means of g^2; for matrices (..., rows, columns) row_var col_var / mean(row_var), the running means of
/// g^2 over each row and each column. Saved as "row_var" and "col_var", or "variance". (Shazeer and Stern, 2018)
///
/// Throws InvalidArgument for an option out of range, for parameters that are distributed over ranks or slices of tensor
/// parallelism, whose means would need the whole parameter, if there are no parameters, if a parameter is given twice, and
/// for a step in a CUDA graph.
class Adafactor : public Optimizer {
 public:
  explicit Adafactor(const Groups<AdafactorGroup>& params, const AdafactorOptions& options = {});

  using Optimizer::step;
  void step() override;
  /// Adds a group. Throws as the constructor. Schedulers that exist do not change its learning rate.
  void add_param_group(const AdafactorGroup& group);

 private:
  void check_options(std::span<const double> options) const override;
  Shape buffer_shape(const Tensor& parameter, std::size_t buffer) const override;

  AdafactorOptions defaults_;
};

}  // namespace lockstep::optim
