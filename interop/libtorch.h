/// \file
/// LibTorch's spelling, for programs that were written for LibTorch:
///
///     #include <lockstep/interop/libtorch.h>
///     namespace torch = lockstep::libtorch;
///
/// Modules are holders (TORCH_MODULE, `->`), options are chains of setters, and examples have `data` and `target`. All
/// other names are those of namespace lockstep. The modules, parameters and optimizers are Lockstep's own, so the result
/// trains in every mode: DistributedDataParallel(*net, group). docs/from_libtorch.md lists what differs.
///
/// A plain struct with a forward that does not override `Tensor forward(const Tensor&) const` can be called as
/// `net.forward(x)` only; held by TORCH_MODULE, it runs in containers and training modes, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>

#include "lockstep/interop/libtorch/data.h"
#include "lockstep/interop/libtorch/layers.h"
#include "lockstep/interop/libtorch/modules.h"
#include "lockstep/interop/libtorch/optim.h"
#include "lockstep/lockstep.h"

/// Throws InvalidArgument with the text of the other arguments unless `condition` is true.
#define TORCH_CHECK(condition, ...)                                                            \
  do {                                                                                         \
    if (!(condition))                                                                          \
      throw ::lockstep::InvalidArgument(                                                       \
          ::lockstep::libtorch::str("expected " #condition __VA_OPT__(, ": ", ) __VA_ARGS__)); \
  } while (false)
#define AT_ASSERT TORCH_CHECK

namespace lockstep::libtorch {

using namespace lockstep;

/// The arguments as one text.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream text;
  (text << ... << args);
  return text.str();
}

using InferenceMode = InferenceGuard;  ///< LibTorch's name
using std::make_optional, std::nullopt, std::optional;

using ScalarType = DType;              ///< LibTorch's name
using IntArrayRef = Shape;             ///< a shape by LibTorch's name
using AutoGradMode = EnableGradGuard;  ///< LibTorch's name

/// TensorOptions().dtype(kInt64).device(kCPU): options of functions that create tensors.
class TensorOptions : public TensorOption {
 public:
  using TensorOption::TensorOption;
  TensorOptions() : TensorOption(lockstep::TensorOptions()) {}
};

namespace autograd {
using namespace lockstep::autograd;
using DetectAnomalyGuard = AnomalyGuard;  ///< LibTorch's name
}  // namespace autograd

/// A constant that stands for values of several enumerations.
template <auto Value>
struct ConvertsTo {
  /// The value.
  constexpr operator decltype(Value)() const { return Value; }  // NOLINT: implicit on purpose
};
/// A constant with several meanings.
template <auto... Values>
struct Constant : ConvertsTo<Values>... {};
/// The constants that LibTorch's options take.
inline constexpr Constant<lockstep::nn::Reduction::kMean, lockstep::nn::BagMode::kMean> kMean;
inline constexpr Constant<lockstep::nn::Reduction::kSum, lockstep::nn::BagMode::kSum> kSum;
inline constexpr Constant<lockstep::nn::RNNNonlinearity::kReLU, lockstep::nn::init::Nonlinearity::kReLU> kReLU;
inline constexpr Constant<lockstep::nn::RNNNonlinearity::kTanh, lockstep::nn::init::Nonlinearity::kTanh> kTanh;
inline constexpr auto kNone = lockstep::nn::Reduction::kNone;
inline constexpr auto kLeakyReLU = lockstep::nn::init::Nonlinearity::kLeakyReLU;
inline constexpr auto kFanIn = lockstep::nn::init::FanMode::kFanIn, kFanOut = lockstep::nn::init::FanMode::kFanOut;
inline constexpr auto kSame = lockstep::nn::Padding::kSame, kValid = lockstep::nn::Padding::kValid;
inline constexpr auto kReflect = PadMode::kReflect, kReplicate = PadMode::kReplicate, kCircular = PadMode::kCircular;
/// The reductions that LibTorch's functions take.
struct Reduction {
  static constexpr lockstep::nn::Reduction None = lockstep::nn::Reduction::kNone;  ///< a loss per element
  static constexpr lockstep::nn::Reduction Mean = lockstep::nn::Reduction::kMean;  ///< their mean
  static constexpr lockstep::nn::Reduction Sum = lockstep::nn::Reduction::kSum;    ///< their sum
};

using lockstep::binary_cross_entropy, lockstep::gelu, lockstep::l1_loss, lockstep::mse_loss, lockstep::nll_loss;
/// Functions whose options are arguments in LibTorch.
inline Tensor gelu(const Tensor& x, const std::string& approximate) {
  return nn::gelu_of(approximate) == nn::Gelu::kTanh ? gelu_tanh(x) : gelu(x);
}
inline Tensor nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight,
                       lockstep::nn::Reduction reduction = Reduction::Mean) {
  return nll_loss(x, target, {.reduction = reduction, .weight = weight});
}
inline Tensor cross_entropy_loss(const Tensor& x, const Tensor& target, const Tensor& weight = {},
                                 lockstep::nn::Reduction reduction = Reduction::Mean) {
  return nn::cross_entropy(x, target, {.reduction = reduction, .weight = weight});
}
inline Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight,
                                   lockstep::nn::Reduction reduction = Reduction::Mean) {
  return binary_cross_entropy(x, target, {.reduction = reduction, .weight = weight});
}
inline Tensor mse_loss(const Tensor& x, const Tensor& target, lockstep::nn::Reduction reduction) {
  return mse_loss(x, target, {.reduction = reduction});
}
inline Tensor l1_loss(const Tensor& x, const Tensor& target, lockstep::nn::Reduction reduction) {
  return l1_loss(x, target, {.reduction = reduction});
}

}  // namespace lockstep::libtorch
