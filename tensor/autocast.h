/// \file
/// Autocast: mixed precision as in torch.autocast. While autocast is on, these functions convert their
/// floating-point operands other than f64:
///
/// - to the guard's dtype, which is also the result's: matmul, mm, bmm, addmm, baddbmm, einsum with sums, linear, conv2d,
///   conv_transpose2d, scaled_dot_product_attention (not dot and outer, as in PyTorch);
/// - from f16 and bf16 to f32, which is also the result's dtype: sum, mean, cumsum, norm, var, std, softmax,
///   log_softmax, logsumexp, layer_norm, rms_norm, batch_norm, and the losses;
/// - to the widest dtype among the operands: scatter_add.
///
/// All other operations promote types as usual. Parameters, their gradients and the optimizer's state stay f32.
#pragma once

#include <optional>

#include "lockstep/tensor/dtype.h"

namespace lockstep {

/// The guard's dtype on this thread; empty while autocast is off.
std::optional<DType> autocast_dtype();
/// True while autocast is on for this thread.
inline bool is_autocast_enabled() { return autocast_dtype().has_value(); }

/// While the guard exists, autocast is on for this thread, or off if `enabled` is false. The destructor restores the
/// previous mode. Run forward and the loss under the guard, and backward and the optimizer's step after it:
///
///     std::optional<ls::AutocastGuard> autocast(ls::kBFloat16);
///     const ls::Tensor loss = criterion(model(x), y);
///     autocast.reset();
///     loss.backward();
///
/// backward itself never runs under autocast: it computes in the dtypes that forward recorded. Threads of DataParallel
/// and workers of DataLoader inherit the mode; other threads start without autocast.
class AutocastGuard {
 public:
  /// Throws InvalidArgument unless dtype is kBFloat16 or kFloat16, or `enabled` is false. f16 overflows above 65504: large gradients become
  /// infinite, so prefer bf16.
  explicit AutocastGuard(DType dtype, bool enabled = true);
  /// Sets a mode that autocast_dtype() returned, for example on another thread. An empty mode turns autocast off.
  explicit AutocastGuard(std::optional<DType> mode);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  std::optional<DType> previous_;
};

}  // namespace lockstep
