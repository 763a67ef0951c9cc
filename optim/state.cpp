#include <string>

#include "lockstep/optim/state_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::optim {

Tensor to_tensor(double value) { return raw::from_bytes(&value, {}, kFloat64); }
Tensor to_tensor(bool value) { return raw::from_bytes(&value, {}, kBool); }
Tensor to_tensor(std::int64_t value) { return raw::from_bytes(&value, {}, kInt64); }
Tensor to_tensor(const std::vector<double>& values) {
  return raw::from_bytes(values.data(), {static_cast<std::int64_t>(values.size())}, kFloat64);
}
Tensor to_tensor(const std::vector<std::int64_t>& values) {
  return raw::from_bytes(values.data(), {static_cast<std::int64_t>(values.size())}, kInt64);
}

const Tensor& StateReader::at(const std::string& key) const {
  LOCKSTEP_CHECK(dict_.contains(key),
                 "load_state_dict: \"{}\" is missing; was the state saved by an object of another class?", key);
  read_.insert(key);
  return dict_.at(key);
}

double StateReader::number(const std::string& key) const {
  const Tensor& tensor = at(key);
  LOCKSTEP_CHECK(tensor.numel() == 1 && (tensor.dtype() == kFloat64 || tensor.dtype() == kBool),
                 "load_state_dict: \"{}\" is {}, expected one f64 or bool", key, describe(tensor));
  return tensor.item<double>();
}

std::int64_t StateReader::count(const std::string& key) const {
  const Tensor& tensor = at(key);
  LOCKSTEP_CHECK(tensor.numel() == 1 && tensor.dtype() == kInt64, "load_state_dict: \"{}\" is {}, expected one i64",
                 key, describe(tensor));
  const auto value = tensor.item<std::int64_t>();
  constexpr std::int64_t kMost = std::int64_t{1} << 53;  // schedules and optimizers compute with it in f64
  LOCKSTEP_CHECK(value >= 0 && value <= kMost, "load_state_dict: \"{}\" is {}, expected a count from 0 to {}", key,
                 value, kMost);
  return value;
}

std::vector<double> StateReader::numbers(const std::string& key) const {
  const Tensor& tensor = at(key);
  LOCKSTEP_CHECK(tensor.dim() == 1 && tensor.dtype() == kFloat64, "load_state_dict: \"{}\" is {}, expected 1-D f64",
                 key, describe(tensor));
  return tensor.to_vector<double>();
}

std::vector<std::int64_t> StateReader::integers(const std::string& key) const {
  const Tensor& tensor = at(key);
  LOCKSTEP_CHECK(tensor.dim() == 1 && tensor.dtype() == kInt64, "load_state_dict: \"{}\" is {}, expected 1-D i64", key,
                 describe(tensor));
  return tensor.to_vector<std::int64_t>();
}

void StateReader::require_all_read() const {
  for (const auto& [key, tensor] : dict_) {
    LOCKSTEP_CHECK(read_.contains(key), "load_state_dict: {}, {}, is unexpected", in_quotes(key), describe(tensor));
  }
}

StateDict with_prefix_removed(const StateDict& dict, const std::string& prefix) {
  StateDict result;
  for (const auto& [name, tensor] : dict) {
    if (name.starts_with(prefix)) result.insert(name.substr(prefix.size()), tensor);
  }
  return result;
}

}  // namespace lockstep::optim
