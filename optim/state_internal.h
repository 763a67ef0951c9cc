// Conversion of numbers to entries of a StateDict, and a reader whose errors name the key. Not installed.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "lockstep/nn/state_dict.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::optim {

Tensor to_tensor(double value);        // f64, 0-d
Tensor to_tensor(bool value);          // bool, 0-d
Tensor to_tensor(std::int64_t value);  // i64, 0-d
Tensor to_tensor(const std::vector<double>& values);
Tensor to_tensor(const std::vector<std::int64_t>& values);

// Reads entries of a state dict, and records which were read. All functions throw InvalidArgument naming the key.
class StateReader {
 public:
  explicit StateReader(const StateDict& dict) : dict_(dict) {}

  bool contains(const std::string& key) const { return dict_.contains(key); }
  const Tensor& at(const std::string& key) const;
  double number(const std::string& key) const;                       // one element: f64 or bool
  std::int64_t count(const std::string& key) const;                  // one element: i64 from 0 to 2^53
  std::vector<double> numbers(const std::string& key) const;         // 1-D, f64
  std::vector<std::int64_t> integers(const std::string& key) const;  // 1-D, i64
  // Throws for the first key that was not read.
  void require_all_read() const;

 private:
  const StateDict& dict_;
  mutable std::set<std::string> read_;
};

// The entries whose names begin with `prefix`, with the prefix removed.
StateDict with_prefix_removed(const StateDict& dict, const std::string& prefix);

}  // namespace lockstep::optim
