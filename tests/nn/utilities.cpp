#include "support.h"

#include <cmath>
#include <limits>

TEST_CASE("clip_grad_norm_ scales like PyTorch and returns the norm before clipping") {
  const ls::StateDict dict = golden("optim");
  for (const std::string& tag : float_tags()) {
    for (const auto& [name, max_norm] : {std::pair{"clip", 1.5}, {"clip_not_needed", 100.0}}) {
      const std::string prefix = std::string(name) + "." + tag + "/";
      std::vector<nn::Parameter> parameters;
      for (const char* key : {"before0", "before1"}) {
        parameters.emplace_back(ls::zeros_like(dict.at(prefix + key)));
        parameters.back()->set_grad(dict.at(prefix + key).clone());
      }
      parameters.emplace_back(ls::zeros({2}));  // has no gradient: skipped
      const double norm = nn::clip_grad_norm_(parameters, max_norm);
      CHECK(norm == doctest::Approx(dict.at(prefix + "norm").item<double>()).epsilon(tag == "f32" ? 1e-6 : 1e-12));
      check_close(parameters[0]->grad(), dict.at(prefix + "after0"), prefix + "after0");
      check_close(parameters[1]->grad(), dict.at(prefix + "after1"), prefix + "after1");
      CHECK_FALSE(parameters[2]->grad().defined());
    }
  }
}

TEST_CASE("clip_grad_norm_ refuses a negative or NaN limit, and propagates a NaN gradient") {
  nn::Parameter p(ls::zeros({2}));
  CHECK(error_of([&] { nn::clip_grad_norm_({p}, -1.0); }) == "clip_grad_norm_: max_norm is -1, expected 0 or more");
  CHECK(contains(error_of([&] { nn::clip_grad_norm_({p}, std::numeric_limits<double>::quiet_NaN()); }),
                 "max_norm is nan"));
  CHECK(nn::clip_grad_norm_({}, 1.0) == 0.0);
  p->set_grad(ls::tensor({1.0, std::numeric_limits<double>::quiet_NaN()}));
  CHECK(std::isnan(nn::clip_grad_norm_({p}, 1.0)));
  CHECK(std::isnan(p->grad()[0].item<double>()));
}
