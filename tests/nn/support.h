// Shared by the tests of nn/.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/warning.h"
#include "tests/support/testing.h"

namespace nn = lockstep::nn;

// Sets dtype and parameters of a golden case with the tag f32 or f64.
inline void load_case(nn::Module& module, const ls::StateDict& dict, const std::string& prefix,
                      const std::string& tag) {
  module.to(tag == "f32" ? ls::kFloat32 : ls::kFloat64);
  for (const auto& [key, p] : module.named_parameters()) p.master().detach().copy_(dict.at(prefix + key));
}

// Compares y and every gradient of one golden step.
inline void check_step(nn::Module& module, const ls::StateDict& dict, const std::string& prefix,
                       const Tolerance& allowed) {
  module.zero_grad();
  const ls::Tensor x = dict.at(prefix + "x").clone();
  if (x.is_floating_point()) x.requires_grad_();
  const ls::Tensor y = module(x);
  check_close(y, dict.at(prefix + "y"), "y", allowed);
  y.backward(dict.at(prefix + "grad_y"));
  if (x.is_floating_point()) check_close(x.grad(), dict.at(prefix + "grad_x"), "grad_x", allowed);
  for (const auto& [key, p] : module.named_parameters())
    check_close(p->grad(), dict.at(prefix + "grad_" + key), key, allowed);
}

// Returns the error of load_weights, which may be longer than other errors, since it has all names.
inline std::string error_of_load(nn::Module& model, const std::string& path,
                                 const nn::LoadWeightsOptions& options = {}) {
  try {
    nn::load_weights(model, path, options);
  } catch (const ls::InvalidArgument& error) {
    return error.what();
  }
  return "";
}
