/// \file
/// Function objects without `<functional>`: Callback owns one (hooks, collate functions, warning handlers), FunctionRef
/// refers to one for the duration of a call.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

template <class Signature>
class Callback;

/// Owns a function of the given signature: a lambda, or any other object that can be called. Movable, not copyable.
template <class R, class... Args>
class Callback<R(Args...)> {
 public:
  Callback() = default;
  /// Moves or copies in any object that can be called with Args and returns an R.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Callback> && std::is_invocable_r_v<R, F&, Args...>)
      Callback(F&& function)
      : target_(std::make_unique<Holder<std::decay_t<F>>>(std::forward<F>(function))) {}

  explicit operator bool() const { return target_ != nullptr; }  ///< false: empty
  /// Calls the function. Undefined for an empty Callback.
  R operator()(Args... args) const { return target_->call(std::forward<Args>(args)...); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual R call(Args... args) = 0;
  };
  template <class F>
  struct Holder final : Base {
    explicit Holder(F f) : function(std::move(f)) {}
    R call(Args... args) override { return function(std::forward<Args>(args)...); }
    F function;
  };
  std::unique_ptr<Base> target_;
};

template <class Signature>
class FunctionRef;

/// Refers to a function for the duration of a call. The function must outlive the FunctionRef.
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  /// Refers to any object that can be called with Args and returns an R.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, Args...>)
      FunctionRef(F&& function)  // NOLINT: implicit, so that a lambda can be passed
      : target_(const_cast<void*>(static_cast<const void*>(&function))), call_([](void* target, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(target))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(target_, std::forward<Args>(args)...); }  ///< calls the function

 private:
  void* target_;
  R (*call_)(void*, Args...);
};

}  // namespace lockstep
