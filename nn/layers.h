/// \file
/// Layers and containers. Names, defaults and initialisation are PyTorch's.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct LinearOptions {
  bool bias = true;  ///< false: y = x weight^T
};

/// y = x weight^T + bias. x (..., in) -> (..., out); weight (out, in), bias (out), both from U(-1/sqrt(in), 1/sqrt(in)).
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< (out, in)
  Parameter& bias;    ///< (out); an undefined tensor if `.bias` is false
};

/// Runs its modules one after another. Their names are "0", "1", ...
class Sequential : public Module {
 public:
  Sequential() = default;
  template <class... Modules>
  requires(sizeof...(Modules) > 0 &&
           (std::derived_from<Modules, Module> && ...)) explicit Sequential(Modules&&... modules) {
    (push_back(std::forward<Modules>(modules)), ...);
  }
  Sequential(Sequential&&) noexcept = default;
  Sequential& operator=(Sequential&&) noexcept = default;

  /// Appends a module and returns it.
  template <std::derived_from<Module> M>
  M& push_back(M&& module) {
    return add(std::to_string(size()), std::move(module));
  }
  /// The number of modules.
  std::int64_t size() const { return static_cast<std::int64_t>(owned_children().size()); }
  /// Module `index`. Throws InvalidArgument outside [0, size()).
  Module& operator[](std::int64_t index) const;
  Tensor forward(const Tensor& x) const override;
};

/// Returns its input.
class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) const override { return x; }
};

struct FlattenOptions {
  std::int64_t start_dim = 1;  ///< first dimension to flatten
  std::int64_t end_dim = -1;   ///< last dimension to flatten; -1 is the last of x
};

/// Merges dimensions start_dim to end_dim into one: (batch, a, b) -> (batch, a b).
class Flatten : public Module {
 public:
  explicit Flatten(const FlattenOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) const override { return x.flatten(options_.start_dim, options_.end_dim); }

 private:
  FlattenOptions options_;
};

/// While training, sets each element to zero with probability p and scales the others by 1 / (1 - p). In eval mode it
/// returns its input. Random numbers are from the dropout stream of the current micro-batch. The constructor throws
/// InvalidArgument for p outside [0, 1]. (Srivastava et al., 2014)
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) const override;

 private:
  double p_;
};

struct LayerNormOptions {
  double eps = 1e-5;               ///< added to the variance
  bool elementwise_affine = true;  ///< has a weight, and a bias unless `.bias` is false
  bool bias = true;                ///< adds a learned bias; without effect if `.elementwise_affine` is false
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias, with mean and (biased) variance over the last dimensions, whose
/// sizes are `shape`. weight starts as 1 and bias as 0, both of that shape. (Ba et al., 2016)
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& shape, const LayerNormOptions& options = {});
  explicit LayerNorm(std::initializer_list<std::int64_t> shape, const LayerNormOptions& options = {})
      : LayerNorm(Shape(shape), options) {}
  Tensor forward(const Tensor& x) const override;

  Parameter& weight;  ///< starts as 1; an undefined tensor if `.elementwise_affine` is false
  Parameter& bias;    ///< starts as 0; an undefined tensor if `.elementwise_affine` or `.bias` is false

 private:
  Shape shape_;
  double eps_;
};

struct EmbeddingOptions {
  /// The row for padding: it starts as 0, and its gradient is 0. Negative numbers count from the end.
  std::optional<std::int64_t> padding_idx = std::nullopt;
};

/// Looks up rows of a table. index (...) of i64 or i32, each in [0, n) -> (..., dim); weight (n, dim) from N(0, 1).
/// Throws InvalidArgument for an index outside [0, n), naming index and position.
class Embedding : public Module {
 public:
  Embedding(std::int64_t n, std::int64_t dim, const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& index) const override;

  Parameter& weight;  ///< (n, dim)

 private:
  void check_range(const Tensor& index) const;

  std::optional<std::int64_t> padding_idx_;  // in [0, n)
};

}  // namespace lockstep::nn
