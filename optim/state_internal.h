// Conversion of numbers to entries of a StateDict, and a reader whose errors name the key. Not installed.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/files/state_dict.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::optim {

// A 0-d tensor.
template <class T>
Tensor to_tensor(T value) {
  return raw::from_bytes(&value, {}, dtype_of<T>);
}
// A 1-D tensor.
template <class T>
Tensor to_tensor(const std::vector<T>& values) {
  return raw::from_bytes(values.data(), {static_cast<std::int64_t>(values.size())}, dtype_of<T>);
}

// Returns value(source) if it is the same for all sources; otherwise, or without sources, `own`.
template <class Value>
double common_value(const std::vector<std::size_t>& sources, double own, const Value& value) {
  for (const std::size_t source : sources) {
    if (value(source) != value(sources[0])) return own;
  }
  return sources.empty() ? own : value(sources[0]);
}

// Reads entries of a state dict, and records which were read. All functions throw InvalidArgument naming the key.
class StateReader {
 public:
  explicit StateReader(const StateDict& dict) : dict_(dict) {}

  bool contains(const std::string& key) const { return dict_.contains(key); }

  // The rests of the keys that begin with `prefix`.
  std::vector<std::string> names_after(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const auto& [key, tensor] : dict_) {
      if (key.starts_with(prefix)) names.push_back(key.substr(prefix.size()));
    }
    return names;
  }

  const Tensor& at(const std::string& key) const {
    LOCKSTEP_CHECK(contains(key),
                   "load_state_dict: \"{}\" is missing; was the state saved by an object of another class?", key);
    read_.insert(key);
    return dict_.at(key);
  }

  // One element: f64 or bool.
  double number(const std::string& key) const {
    const Tensor& tensor = at(key);
    LOCKSTEP_CHECK(tensor.numel() == 1 && (tensor.dtype() == kFloat64 || tensor.dtype() == kBool),
                   "load_state_dict: \"{}\" is {}, expected one f64 or bool", key, describe(tensor));
    return tensor.item<double>();
  }

  // One element: i64 from 0 to 2^53.
  std::int64_t count(const std::string& key) const {
    const Tensor& tensor = at(key);
    LOCKSTEP_CHECK(tensor.numel() == 1 && tensor.dtype() == kInt64, "load_state_dict: \"{}\" is {}, expected one i64",
                   key, describe(tensor));
    const auto value = tensor.item<std::int64_t>();
    constexpr std::int64_t kMost = std::int64_t{1} << 53;  // schedules and optimizers compute with it in f64
    LOCKSTEP_CHECK(value >= 0 && value <= kMost, "load_state_dict: \"{}\" is {}, expected a count from 0 to {}", key,
                   value, kMost);
    return value;
  }

  // 1-D, of dtype T.
  template <class T>
  std::vector<T> list(const std::string& key) const {
    const Tensor& tensor = at(key);
    LOCKSTEP_CHECK(tensor.dim() == 1 && tensor.dtype() == dtype_of<T>, "load_state_dict: \"{}\" is {}, expected 1-D {}",
                   key, describe(tensor), name(dtype_of<T>));
    return tensor.to_vector<T>();
  }

  // Throws for the first key that was not read.
  void require_all_read() const {
    for (const auto& [key, tensor] : dict_) {
      LOCKSTEP_CHECK(read_.contains(key), "load_state_dict: {}, {}, is unexpected", in_quotes(key), describe(tensor));
    }
  }

 private:
  const StateDict& dict_;
  mutable std::set<std::string> read_;
};

}  // namespace lockstep::optim
