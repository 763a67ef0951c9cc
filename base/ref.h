/// \file
/// Shared ownership by a count inside the object: a handle is one pointer, an object one allocation.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

/// Base of objects held by Ref. T::destroy(const T*) is called when the last Ref is destroyed.
template <class T>
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void add_ref() const { count_.fetch_add(1, std::memory_order_relaxed); }
  /// Returns true if the caller dropped the last reference and must destroy the object.
  bool drop_ref() const {
    // The sole owner needs no locked instruction: no other thread can add a reference.
    if (count_.load(std::memory_order_acquire) == 1) return true;
    return count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  std::uint32_t use_count() const { return count_.load(std::memory_order_acquire); }

 protected:
  ~RefCounted() = default;

 private:
  mutable std::atomic<std::uint32_t> count_{1};
};

template <class T>
class Ref {
 public:
  Ref() = default;
  /// Takes over the object's initial reference.
  static Ref adopt(T* object) {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  /// Adds a reference to an object with other owners.
  static Ref share(T* object) {
    if (object) object->add_ref();
    return adopt(object);
  }
  Ref(const Ref& other) : object_(other.object_) {
    if (object_) object_->add_ref();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(const Ref& other) {
    Ref(other).swap(*this);
    return *this;
  }
  Ref& operator=(Ref&& other) noexcept {
    Ref(std::move(other)).swap(*this);
    return *this;
  }
  ~Ref() {
    if (object_ && object_->drop_ref()) T::destroy(object_);
  }

  void swap(Ref& other) noexcept { std::swap(object_, other.object_); }
  void reset() { Ref().swap(*this); }
  T* release() { return std::exchange(object_, nullptr); }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

}  // namespace lockstep
