/// \file
/// A vector that stores its first N elements inside the object: most operations have few inputs, and lists of them
/// should not allocate.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

template <class T, std::size_t N>
class SmallVector {
 public:
  SmallVector() = default;
  SmallVector(SmallVector&& other) noexcept { take(other); }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      clear();
      take(other);
    }
    return *this;
  }
  SmallVector(const SmallVector& other) {
    reserve(other.size_);
    for (const T& value : other) push_back(value);
  }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) *this = SmallVector(other);
    return *this;
  }
  ~SmallVector() { release_heap(); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T& front() { return data_[0]; }
  T& back() { return data_[size_ - 1]; }
  const T& front() const { return data_[0]; }
  const T& back() const { return data_[size_ - 1]; }

  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) [[unlikely]]
      reserve(2 * capacity_);
    if constexpr (sizeof...(Args) == 0)
      return *::new (static_cast<void*>(data_ + size_++)) T;  // T() would fill it with zeros first
    else
      return *std::construct_at(data_ + size_++, std::forward<Args>(args)...);
  }
  void push_back(T value) { emplace_back(std::move(value)); }
  void pop_back() { std::destroy_at(data_ + --size_); }
  void resize(std::size_t size) {
    reserve(size);
    while (size_ > size) pop_back();
    while (size_ < size) emplace_back();
  }
  void reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    T* larger = std::allocator<T>().allocate(capacity);
    std::uninitialized_move(begin(), end(), larger);
    release_heap();
    data_ = larger;
    capacity_ = capacity;
  }
  /// Destroys the elements and returns to the inline storage.
  void clear() {
    release_heap();
    data_ = inside();
    size_ = 0;
    capacity_ = N;
  }

 private:
  T* inside() { return reinterpret_cast<T*>(room_); }
  void release_heap() {
    std::destroy(begin(), end());
    if (data_ != inside()) std::allocator<T>().deallocate(data_, capacity_);
  }
  // Moves the elements of `other` into this empty vector.
  void take(SmallVector& other) {
    if (other.data_ == other.inside()) {
      std::uninitialized_move(other.begin(), other.end(), data_);
      size_ = other.size_;
      std::destroy(other.begin(), other.end());
    } else {
      data_ = other.data_;
      size_ = other.size_;
      capacity_ = other.capacity_;
    }
    other.data_ = other.inside();
    other.size_ = 0;
    other.capacity_ = N;
  }

  std::size_t size_ = 0;
  std::size_t capacity_ = N;
  alignas(T) std::byte room_[N * sizeof(T)];
  T* data_ = inside();
};

}  // namespace lockstep
