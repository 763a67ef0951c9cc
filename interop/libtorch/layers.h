/// \file
/// Layers and losses with LibTorch's options, which are chains of setters. See interop/libtorch.h.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "lockstep/interop/libtorch/modules.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/layers/activations.h"
#include "lockstep/nn/layers/embedding_bag.h"
#include "lockstep/nn/layers/image_layers.h"
#include "lockstep/nn/layers/losses.h"
#include "lockstep/nn/layers/norm_layers.h"
#include "lockstep/nn/layers/recurrent.h"
#include "lockstep/nn/layers/resize_layers.h"
#include "lockstep/nn/layers/sequence_layers.h"
#include "lockstep/nn/layers/volume_layers.h"
#include "lockstep/nn/utilities.h"

// A setter of the field of the same name in Lockstep's options.
#define LOCKSTEP_SETTER(field)                \
  auto& field(decltype(fields.field) value) { \
    fields.field = std::move(value);          \
    return *this;                             \
  }
#define LOCKSTEP_SETTERS_2(a, b) LOCKSTEP_SETTER(a) LOCKSTEP_SETTER(b)
#define LOCKSTEP_SETTERS_3(a, b, c) LOCKSTEP_SETTERS_2(a, b) LOCKSTEP_SETTER(c)
#define LOCKSTEP_SETTERS_4(a, b, c, d) LOCKSTEP_SETTERS_3(a, b, c) LOCKSTEP_SETTER(d)
#define LOCKSTEP_SETTERS_5(a, b, c, d, e) LOCKSTEP_SETTERS_4(a, b, c, d) LOCKSTEP_SETTER(e)
#define LOCKSTEP_SETTERS_6(a, b, c, d, e, f) LOCKSTEP_SETTERS_5(a, b, c, d, e) LOCKSTEP_SETTER(f)
// A layer whose constructor in Lockstep takes the arguments `required`, then options.
#define LOCKSTEP_LAYER(Name, required, setters)                                                  \
  struct Name##Options : LayerOptions<lockstep::nn::Name##Options LOCKSTEP_ARGUMENTS required> { \
    using LayerOptions::LayerOptions;                                                            \
    setters                                                                                      \
  };                                                                                             \
  using Name = Layer<lockstep::nn::Name, Name##Options>
#define LOCKSTEP_ARGUMENTS(...) __VA_OPT__(, ) __VA_ARGS__
// A layer whose constructor in Lockstep takes one number.
#define LOCKSTEP_LAYER_OF_NUMBER(Name, Type, field, ...)                  \
  struct Name##Options {                                                  \
    Name##Options(Type value __VA_ARGS__) : number(value) {} /* NOLINT */ \
    Name##Options& field(Type value) {                                    \
      number = value;                                                     \
      return *this;                                                       \
    }                                                                     \
    template <class M>                                                    \
    std::shared_ptr<M> make() const {                                     \
      return std::make_shared<M>(number);                                 \
    }                                                                     \
    Type number;                                                          \
  };                                                                      \
  using Name = Layer<lockstep::nn::Name, Name##Options>

namespace lockstep::libtorch::nn {

/// Gelu::kNone or kTanh by PyTorch's names. Throws InvalidArgument for another one.
inline Gelu gelu_of(const std::string& how) {
  if (how == "none") return Gelu::kNone;
  if (how == "tanh") return Gelu::kTanh;
  throw InvalidArgument("gelu: approximate is \"" + how + "\", expected \"none\" or \"tanh\"");
}

/// The options of a layer with setters, after its required arguments.
template <class Fields, class... Required>
struct LayerOptions {
  LayerOptions(Required... values) : required(std::move(values)...) {}  // NOLINT: implicit, as in LibTorch
  template <class M>
  std::shared_ptr<M> make() const {  ///< the layer
    return std::apply([&](const auto&... each) { return std::make_shared<M>(each..., fields); }, required);
  }
  /// Lockstep's options, for functions that take them.
  operator const Fields&() const { return fields; }  // NOLINT: implicit on purpose

  std::tuple<Required...> required;  ///< arguments of the layer's constructor
  Fields fields = {};                ///< Lockstep's options
};

/// The holder of a layer, which can also be made from its options.
template <class M, class Options>
class Layer : public ModuleHolder<M> {
 public:
  using ModuleHolder<M>::ModuleHolder;
  Layer(const Options& options) : ModuleHolder<M>(options.template make<M>()) {}  // NOLINT: implicit, as in LibTorch
};

/// Layers by LibTorch's names: Conv2d(Conv2dOptions(1, 16, 3).padding(1)), Linear(10, 2).
LOCKSTEP_LAYER(Linear, (std::int64_t, std::int64_t), LOCKSTEP_SETTER(bias));
LOCKSTEP_LAYER(Conv1d, (std::int64_t, std::int64_t, std::int64_t),
               LOCKSTEP_SETTERS_5(stride, padding, dilation, groups, bias));
LOCKSTEP_LAYER(Conv2d, (std::int64_t, std::int64_t, Size2d),
               LOCKSTEP_SETTERS_5(stride, padding, dilation, groups, bias));
LOCKSTEP_LAYER(Conv3d, (std::int64_t, std::int64_t, Size3d),
               LOCKSTEP_SETTERS_5(stride, padding, dilation, groups, bias));
LOCKSTEP_LAYER(ConvTranspose1d, (std::int64_t, std::int64_t, std::int64_t),
               LOCKSTEP_SETTERS_6(stride, padding, output_padding, groups, bias, dilation));
LOCKSTEP_LAYER(ConvTranspose2d, (std::int64_t, std::int64_t, Size2d),
               LOCKSTEP_SETTERS_6(stride, padding, output_padding, groups, bias, dilation));
LOCKSTEP_LAYER(MaxPool1d, (std::int64_t), LOCKSTEP_SETTERS_4(stride, padding, dilation, ceil_mode));
LOCKSTEP_LAYER(MaxPool2d, (Size2d), LOCKSTEP_SETTERS_4(stride, padding, dilation, ceil_mode));
LOCKSTEP_LAYER(AvgPool1d, (std::int64_t), LOCKSTEP_SETTERS_4(stride, padding, ceil_mode, count_include_pad));
LOCKSTEP_LAYER(AvgPool2d, (Size2d), LOCKSTEP_SETTERS_4(stride, padding, ceil_mode, count_include_pad));
LOCKSTEP_LAYER(BatchNorm1d, (std::int64_t), LOCKSTEP_SETTERS_4(eps, momentum, affine, track_running_stats));
LOCKSTEP_LAYER(BatchNorm2d, (std::int64_t), LOCKSTEP_SETTERS_4(eps, momentum, affine, track_running_stats));
LOCKSTEP_LAYER(InstanceNorm1d, (std::int64_t), LOCKSTEP_SETTERS_2(eps, affine));
LOCKSTEP_LAYER(InstanceNorm2d, (std::int64_t), LOCKSTEP_SETTERS_2(eps, affine));
LOCKSTEP_LAYER(GroupNorm, (std::int64_t, std::int64_t), LOCKSTEP_SETTERS_2(eps, affine));
LOCKSTEP_LAYER(Embedding, (std::int64_t, std::int64_t), LOCKSTEP_SETTER(padding_idx));
LOCKSTEP_LAYER(Flatten, (), LOCKSTEP_SETTERS_2(start_dim, end_dim));
LOCKSTEP_LAYER(PReLU, (), LOCKSTEP_SETTER(init));
LOCKSTEP_LAYER_OF_NUMBER(Dropout, double, p, = 0.5);
LOCKSTEP_LAYER_OF_NUMBER(Dropout2d, double, p, = 0.5);
LOCKSTEP_LAYER_OF_NUMBER(LeakyReLU, double, negative_slope, = 0.01);
LOCKSTEP_LAYER_OF_NUMBER(ELU, double, alpha, = 1);
LOCKSTEP_LAYER_OF_NUMBER(GLU, std::int64_t, dim, = -1);
LOCKSTEP_LAYER_OF_NUMBER(Softmax, std::int64_t, dim);
LOCKSTEP_LAYER_OF_NUMBER(LogSoftmax, std::int64_t, dim);
LOCKSTEP_LAYER_OF_NUMBER(AdaptiveAvgPool2d, Size2d, output_size);
using ReLU = ModuleHolder<lockstep::nn::ReLU>;
using Sigmoid = ModuleHolder<lockstep::nn::Sigmoid>;
using Tanh = ModuleHolder<lockstep::nn::Tanh>;
using SiLU = ModuleHolder<lockstep::nn::SiLU>;
using Mish = ModuleHolder<lockstep::nn::Mish>;
using Softplus = ModuleHolder<lockstep::nn::Softplus>;
using Hardtanh = ModuleHolder<lockstep::nn::Hardtanh>;
using LogSigmoid = ModuleHolder<lockstep::nn::LogSigmoid>;
using Identity = ModuleHolder<lockstep::nn::Identity>;

/// Options of LayerNorm: the sizes of the last dimensions, then setters.
struct LayerNormOptions : LayerOptions<lockstep::nn::LayerNormOptions, Shape> {
  LayerNormOptions(std::initializer_list<std::int64_t> sizes) : LayerOptions(Shape(sizes)) {}
  LayerNormOptions(const Shape& shape) : LayerOptions(shape) {}  // NOLINT: implicit, as in LibTorch
  LOCKSTEP_SETTERS_2(eps, elementwise_affine)
};
using LayerNorm = Layer<lockstep::nn::LayerNorm, LayerNormOptions>;  ///< see lockstep::nn::LayerNorm
/// Options of GELU.
struct GELUOptions : LayerOptions<lockstep::nn::GELUOptions> {
  using LayerOptions::LayerOptions;
  GELUOptions& approximate(const std::string& how) {  ///< "none" or "tanh"
    fields.approximate = gelu_of(how);
    return *this;
  }
};
using GELU = Layer<lockstep::nn::GELU, GELUOptions>;  ///< see lockstep::nn::GELU
LOCKSTEP_LAYER(EmbeddingBag, (std::int64_t, std::int64_t), LOCKSTEP_SETTERS_3(mode, padding_idx, include_last_offset));

// Lockstep's have the batch first, and LibTorch's the time: name lockstep::nn's.
class MultiheadAttention;
class TransformerEncoderLayer;
class TransformerEncoder;
class TransformerDecoderLayer;
class TransformerDecoder;

/// A recurrent layer whose forward also returns the last state, as a tuple (a tensor for GRU and RNN), and takes the
/// first one. Time is dimension 0 unless `batch_first(true)`, as in LibTorch.
template <class Base, class Fields, class State>
class RecurrentImpl : public Base {
 public:
  RecurrentImpl(std::int64_t in, std::int64_t hidden, const Fields& fields = {.batch_first = false})
      : Base(in, hidden, fields) {}
  using Base::forward;
  /// (y, last state) from a first state, by default zeros.
  std::tuple<Tensor, State> forward(const Tensor& x, const std::optional<State>& start = {}) {
    if constexpr (std::same_as<State, Tensor>) {
      auto [y, last] = this->forward_state(x, start ? RecurrentState{*start} : RecurrentState{});
      return {y, last.h};
    } else {
      auto [y, last] =
          this->forward_state(x, start ? RecurrentState{std::get<0>(*start), std::get<1>(*start)} : RecurrentState{});
      return {y, {last.h, last.c}};
    }
  }
};
/// The layers behind the holders LSTM, GRU and RNN.
class LSTMImpl : public RecurrentImpl<lockstep::nn::LSTM, lockstep::nn::RecurrentOptions, std::tuple<Tensor, Tensor>> {
 public:
  using RecurrentImpl::RecurrentImpl;
};
/// Its state is a tensor.
class GRUImpl : public RecurrentImpl<lockstep::nn::GRU, lockstep::nn::RecurrentOptions, Tensor> {
 public:
  using RecurrentImpl::RecurrentImpl;
};
/// Its state is a tensor.
class RNNImpl : public RecurrentImpl<lockstep::nn::RNN, lockstep::nn::RNNOptions, Tensor> {
 public:
  using RecurrentImpl::RecurrentImpl;
};
/// Options of the recurrent layers: input size, hidden size, then setters.
template <class Fields>
struct RecurrentLayerOptions : LayerOptions<Fields, std::int64_t, std::int64_t> {
  using Base = LayerOptions<Fields, std::int64_t, std::int64_t>;  ///< with the required arguments
  RecurrentLayerOptions(std::int64_t in, std::int64_t hidden) : Base(in, hidden) { fields.batch_first = false; }
  using Base::fields;
  LOCKSTEP_SETTERS_5(num_layers, bias, batch_first, dropout, bidirectional)
};
using LSTMOptions = RecurrentLayerOptions<lockstep::nn::RecurrentOptions>;
using GRUOptions = LSTMOptions;
struct RNNOptions : RecurrentLayerOptions<lockstep::nn::RNNOptions> {
  using RecurrentLayerOptions::RecurrentLayerOptions;
  LOCKSTEP_SETTER(nonlinearity)
};
/// Recurrent layers by LibTorch's names.
using LSTM = Layer<LSTMImpl, LSTMOptions>;
using GRU = Layer<GRUImpl, GRUOptions>;
using RNN = Layer<RNNImpl, RNNOptions>;

/// A loss function with its options: criterion(x, target).
template <class Loss, class Options>
class Criterion {
 public:
  Criterion() = default;
  Criterion(const Options& options) : loss_(options.fields) {}  // NOLINT: implicit, as in LibTorch
  Tensor operator()(const Tensor& x, const Tensor& target) const { return loss_(x, target); }  ///< the loss
  Tensor forward(const Tensor& x, const Tensor& target) const { return loss_(x, target); }     ///< the loss
  const Criterion* operator->() const { return this; }  ///< for criterion->forward(x, target)

 private:
  Loss loss_;
};
#define LOCKSTEP_LOSS(Name, setters)                                 \
  struct Name##Options : LayerOptions<lockstep::nn::Name##Options> { \
    setters                                                          \
  };                                                                 \
  using Name = Criterion<lockstep::nn::Name, Name##Options>
/// Losses by LibTorch's names.
LOCKSTEP_LOSS(CrossEntropyLoss, LOCKSTEP_SETTERS_4(weight, reduction, ignore_index, label_smoothing));
LOCKSTEP_LOSS(NLLLoss, LOCKSTEP_SETTERS_3(weight, reduction, ignore_index));
LOCKSTEP_LOSS(BCELoss, LOCKSTEP_SETTERS_2(weight, reduction));
LOCKSTEP_LOSS(BCEWithLogitsLoss, LOCKSTEP_SETTERS_3(weight, reduction, pos_weight));
LOCKSTEP_LOSS(MSELoss, LOCKSTEP_SETTER(reduction));
LOCKSTEP_LOSS(L1Loss, LOCKSTEP_SETTER(reduction));
LOCKSTEP_LOSS(SmoothL1Loss, LOCKSTEP_SETTERS_2(reduction, beta));
LOCKSTEP_LOSS(HuberLoss, LOCKSTEP_SETTERS_2(reduction, delta));

namespace utils {
using lockstep::nn::clip_grad_norm_, lockstep::nn::clip_grad_value_;
using lockstep::nn::parameters_to_vector, lockstep::nn::vector_to_parameters;
namespace rnn {
using lockstep::nn::pad_sequence;
}
}  // namespace utils

namespace init {
using namespace lockstep::nn::init;
using lockstep::nn::init::kaiming_normal_, lockstep::nn::init::kaiming_uniform_;
/// The functions with LibTorch's arguments.
inline Tensor kaiming_normal_(const Tensor& x, double a, FanMode mode = FanMode::kFanIn,
                              Nonlinearity nonlinearity = Nonlinearity::kLeakyReLU) {
  return kaiming_normal_(x, {.a = a, .mode = mode, .nonlinearity = nonlinearity});
}
inline Tensor kaiming_uniform_(const Tensor& x, double a, FanMode mode = FanMode::kFanIn,
                               Nonlinearity nonlinearity = Nonlinearity::kLeakyReLU) {
  return kaiming_uniform_(x, {.a = a, .mode = mode, .nonlinearity = nonlinearity});
}
}  // namespace init

namespace functional {
using namespace lockstep::nn::functional;
/// LibTorch's options of functions.
using CrossEntropyFuncOptions = CrossEntropyLossOptions;
using NLLLossFuncOptions = NLLLossOptions;
using BinaryCrossEntropyFuncOptions = BCELossOptions;
using BinaryCrossEntropyWithLogitsFuncOptions = BCEWithLogitsLossOptions;
using MSELossFuncOptions = MSELossOptions;
using L1LossFuncOptions = L1LossOptions;
using SmoothL1LossFuncOptions = SmoothL1LossOptions;
using HuberLossFuncOptions = HuberLossOptions;
using MaxPool2dFuncOptions = MaxPool2dOptions;
using AvgPool2dFuncOptions = AvgPool2dOptions;
using SoftmaxFuncOptions = SoftmaxOptions;
using LogSoftmaxFuncOptions = LogSoftmaxOptions;
using LeakyReLUFuncOptions = LeakyReLUOptions;
using lockstep::avg_pool2d, lockstep::leaky_relu, lockstep::log_softmax, lockstep::max_pool2d, lockstep::softmax;
/// The functions of these options.
inline Tensor max_pool2d(const Tensor& x, const MaxPool2dFuncOptions& options) { return MaxPool2d(options)(x); }
inline Tensor avg_pool2d(const Tensor& x, const AvgPool2dFuncOptions& options) { return AvgPool2d(options)(x); }
inline Tensor softmax(const Tensor& x, const SoftmaxFuncOptions& options) { return softmax(x, options.number); }
inline Tensor log_softmax(const Tensor& x, const LogSoftmaxFuncOptions& options) {
  return log_softmax(x, options.number);
}
inline Tensor leaky_relu(const Tensor& x, const LeakyReLUFuncOptions& options) { return leaky_relu(x, options.number); }
}  // namespace functional

}  // namespace lockstep::libtorch::nn

#undef LOCKSTEP_LOSS
#undef LOCKSTEP_LAYER_OF_NUMBER
#undef LOCKSTEP_LAYER
#undef LOCKSTEP_ARGUMENTS
#undef LOCKSTEP_SETTERS_6
#undef LOCKSTEP_SETTERS_5
#undef LOCKSTEP_SETTERS_4
#undef LOCKSTEP_SETTERS_3
#undef LOCKSTEP_SETTERS_2
#undef LOCKSTEP_SETTER
