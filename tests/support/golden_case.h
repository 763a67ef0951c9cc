// Checks one case of a golden file: the value and the gradients of a function of named inputs.
#pragma once

#include <functional>
#include <optional>

#include "tests/support/testing.h"

using Inputs = std::vector<ls::Tensor>;

// Runs `function` on the inputs `<key>/<name>` (or `<input_key>/<name>`), compares the result with `<key>/y`, and the
// gradients for the upstream gradient `<key>/grad_y` with those `<key>/grad_<name>` that the file has.
inline void check_case(const ls::StateDict& golden, const std::string& key, const std::vector<std::string>& names,
                       const std::function<ls::Tensor(const Inputs&)>& function, const std::string& input_key = "",
                       std::optional<Tolerance> allowed = {}) {
  INFO(key);
  Inputs inputs;
  for (const std::string& name : names) {
    const ls::Tensor& value = golden.at((input_key.empty() ? key : input_key) + "/" + name);
    inputs.push_back(value.clone());
    if (value.is_floating_point()) inputs.back().requires_grad_();
  }
  const ls::Tensor y = function(inputs);
  const auto compare = [&](const ls::Tensor& have, const std::string& entry) {
    const ls::Tensor& want = golden.at(key + "/" + entry);
    check_close(have, want, entry, allowed.value_or(tolerance(want.dtype())));
  };
  compare(y, "y");
  if (!golden.contains(key + "/grad_y")) return;
  y.backward(golden.at(key + "/grad_y"));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (inputs[i].is_floating_point()) compare(inputs[i].grad(), "grad_" + names[i]);
  }
}
