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
#include <vector>

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

/// Modules in order, with the names "0", "1", ...: the base of Sequential and ModuleList.
class Container : public Module {
 public:
  /// For loops over the modules: `for (nn::Module& block : blocks)`.
  class Iterator {
   public:
    explicit Iterator(std::vector<std::shared_ptr<Module>>::const_iterator at) : at_(at) {}
    /// Operators for range-based for.
    Module& operator*() const { return **at_; }
    Iterator& operator++() { return ++at_, *this; }
    bool operator==(const Iterator&) const = default;

   private:
    std::vector<std::shared_ptr<Module>>::const_iterator at_;
  };

  Container() = default;
  template <class... Modules>
  requires(sizeof...(Modules) > 0 &&
           (std::derived_from<Modules, Module> && ...)) explicit Container(Modules&&... modules) {
    (push_back(std::forward<Modules>(modules)), ...);
  }

  /// Appends a module and returns it: `blocks.push_back(Block(width, heads));`
  template <std::derived_from<Module> M>
  M& push_back(M&& module) {
    return add(std::to_string(size()), std::move(module));
  }
  /// Appends an existing module and returns it. Throws InvalidArgument if it is null.
  template <std::derived_from<Module> M>
  M& push_back(std::unique_ptr<M> module) {
    return static_cast<M&>(add_child(std::to_string(size()), std::move(module)));
  }
  /// The number of modules.
  std::int64_t size() const { return static_cast<std::int64_t>(owned_children().size()); }
  /// Module `index`. Throws InvalidArgument outside [0, size()).
  Module& operator[](std::int64_t index) const;
  Iterator begin() const { return Iterator(owned_children().begin()); }  ///< first module
  Iterator end() const { return Iterator(owned_children().end()); }      ///< past the last module
};

/// Runs its modules one after another.
class Sequential : public Container {
 public:
  using Container::Container;
  Tensor forward(const Tensor& x) const override;
};

/// A list of modules that the forward of the parent module calls. Its own forward throws InvalidArgument.
class ModuleList : public Container {
 public:
  using Container::Container;
};

/// Modules by name, which the forward of the parent module calls: `heads.add<Linear>("score", 10, 1); heads["score"](x)`.
/// Its own forward throws InvalidArgument.
class ModuleDict : public Module {
 public:
  /// The number of modules.
  std::int64_t size() const { return static_cast<std::int64_t>(owned_children().size()); }
  bool contains(const std::string& name) const;       ///< whether there is a module of this name
  std::vector<std::string> keys() const;              ///< the names, in the order of add
  Module& operator[](const std::string& name) const;  ///< throws InvalidArgument if there is no such module
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

 protected:
  double p_;  ///< probability of a zero
};

/// Dropout of whole channels: sets each x[i][j] of x (n, channels, ...) to zero with probability p. (Tompson et al., 2015)
class Dropout2d : public Dropout {
 public:
  using Dropout::Dropout;
  Tensor forward(const Tensor& x) const override;
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

  Parameter& weight;                                                        ///< (n, dim)
  std::optional<std::int64_t> padding_idx() const { return padding_idx_; }  ///< in [0, n); none: no row is for padding

 private:
  std::optional<std::int64_t> padding_idx_;  // in [0, n)
};

}  // namespace lockstep::nn
