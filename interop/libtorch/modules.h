/// \file
/// Modules as LibTorch has them: holders that share a module, and TORCH_MODULE. See interop/libtorch.h.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/base/callback.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/module.h"
#include "lockstep/optim/checkpoint.h"

/// Defines the holder `Name` of the module `NameImpl`.
#define TORCH_MODULE(Name)                                                  \
  class Name : public ::lockstep::libtorch::nn::ModuleHolder<Name##Impl> {  \
   public:                                                                  \
    using ::lockstep::libtorch::nn::ModuleHolder<Name##Impl>::ModuleHolder; \
  }

namespace lockstep::libtorch::nn {

using namespace lockstep::nn;

template <class M>
class ModuleHolder;

/// A parameter or buffer that was registered. It converts to the handle, `Parameter& w = register_parameter(...)`, and not
/// to a Tensor, which would not follow `to`, load_state_dict and replicas.
template <class Handle>
class Registered {
 public:
  explicit Registered(Handle& handle) : handle_(handle) {}
  /// The handle.
  operator Handle&() const { return handle_; }            // NOLINT: implicit on purpose
  const Tensor* operator->() const { return &*handle_; }  ///< members of the tensor

 private:
  Handle& handle_;
};

/// The base of modules in LibTorch's style: members are holders, and `forward` need not be const.
class Module : public lockstep::nn::Module {
 public:
  using lockstep::nn::Module::register_module;
  /// Adds the holder's module and returns the holder. Throws InvalidArgument if it has a parent: a module has only one.
  template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  Holder register_module(const std::string& name, Holder holder) {
    add_child(name, holder.ptr());
    return holder;
  }
  template <std::derived_from<lockstep::nn::Module> M>
  std::shared_ptr<M> register_module(const std::string& name, std::shared_ptr<M> module) {
    add_child(name, module);
    return module;
  }
  /// As those of lockstep::nn::Module.
  Registered<Parameter> register_parameter(const std::string& name, const Tensor& tensor, bool requires_grad = true) {
    return Registered<Parameter>(lockstep::nn::Module::register_parameter(name, tensor, requires_grad));
  }
  Registered<Buffer> register_buffer(const std::string& name, const Tensor& tensor) {
    return Registered<Buffer>(lockstep::nn::Module::register_buffer(name, tensor));
  }
  /// Calls the derived class's forward(x), if a holder has made the module; it may hide this function.
  Tensor forward(const Tensor& x) const override {
    if (!forward_) return lockstep::nn::Module::forward(x);
    return forward_(const_cast<Module&>(*this), x);  // a holder makes no const modules
  }

 private:
  template <class M>
  friend class ModuleHolder;
  Callback<Tensor(Module& self, const Tensor& x)> forward_;
};

/// Shares a module, as copies of the holder do: `->` and `*` give the module, `holder(x)` runs it.
template <class M>
class ModuleHolder {
 public:
  using ContainedType = M;  ///< the module's class

  /// Makes a module, from the same arguments. nullptr: an empty holder.
  ModuleHolder() requires std::default_initializable<M> : ModuleHolder(std::make_shared<M>()) {}
  ModuleHolder(std::nullptr_t) {}  // NOLINT: implicit, as in LibTorch
  template <class First, class... Rest>
  requires(std::constructible_from<M, First, Rest...> &&
           (sizeof...(Rest) > 0 || !std::derived_from<std::remove_cvref_t<First>, ModuleHolder>))  // not a copy
      explicit ModuleHolder(First&& first, Rest&&... rest)
      : ModuleHolder(std::make_shared<M>(std::forward<First>(first), std::forward<Rest>(rest)...)) {}
  /// Shares `module`.
  ModuleHolder(std::shared_ptr<M> module) : module_(std::move(module)) {  // NOLINT: implicit, as in LibTorch
    if constexpr (std::derived_from<M, Module> && requires(M & m, const Tensor& x) {
                    { m.forward(x) } -> std::convertible_to<Tensor>;
                  }) {
      if (module_)
        module_->forward_ = [](Module& self, const Tensor& x) -> Tensor { return static_cast<M&>(self).forward(x); };
    }
  }

  /// The module. Throws InvalidArgument for an empty holder.
  M* operator->() const { return &**this; }
  M& operator*() const {
    if (!module_)
      throw InvalidArgument("ModuleHolder: the holder is empty; construct it without nullptr, or assign one");
    return *module_;
  }
  const std::shared_ptr<M>& ptr() const { return module_; }      ///< the module, or null
  M* get() const { return module_.get(); }                       ///< the module, or null
  bool is_empty() const { return !module_; }                     ///< whether there is no module
  explicit operator bool() const { return module_ != nullptr; }  ///< whether there is a module
  /// forward of these arguments. Of one tensor it is the module's operator(), so that hooks run and errors name the path.
  template <class... Args>
  auto operator()(Args&&... args) const {
    using Result = decltype(module_->forward(std::forward<Args>(args)...));
    if constexpr (sizeof...(Args) == 1 && std::same_as<Result, Tensor>)
      return std::as_const(**this)(std::forward<Args>(args)...);
    else
      return (**this).forward(std::forward<Args>(args)...);
  }

 private:
  std::shared_ptr<M> module_;
};

/// Modules one after another, of holders.
class SequentialImpl : public lockstep::nn::Sequential {
 public:
  SequentialImpl() = default;
  template <class... Holders>
  requires(sizeof...(Holders) > 0) explicit SequentialImpl(const Holders&... holders) { (push_back(holders), ...); }
  /// Appends the holder's module, named by its position or `name`.
  template <class M>
  void push_back(const ModuleHolder<M>& holder) {
    push_back(std::to_string(size()), holder);
  }
  template <class M>
  void push_back(const std::string& name, const ModuleHolder<M>& holder) {
    add_child(name, holder.ptr());
  }
};
TORCH_MODULE(Sequential);

/// A function of one tensor as a module: Functional([](const Tensor& x) { return x.flatten(1); }).
class FunctionalImpl : public lockstep::nn::Module {
 public:
  explicit FunctionalImpl(Callback<Tensor(const Tensor& x)> function) : function_(std::move(function)) {}
  Tensor forward(const Tensor& x) const override { return function_(x); }

 private:
  Callback<Tensor(const Tensor& x)> function_;
};
TORCH_MODULE(Functional);

}  // namespace lockstep::libtorch::nn

namespace lockstep::libtorch {

using lockstep::load;
using lockstep::save;
/// Writes a holder's module, or reads it, as lockstep::save and lockstep::load do: a safetensors file.
template <class M>
void save(const nn::ModuleHolder<M>& module, const std::string& path) {
  lockstep::save(*module, path);
}
template <class M>
void load(nn::ModuleHolder<M>& module, const std::string& path) {
  lockstep::load(*module, path);
}

}  // namespace lockstep::libtorch
