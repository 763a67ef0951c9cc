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

TEST_CASE("clip_grad_value_ limits every element, and refuses the parameters of a sharded model") {
  const nn::Parameter p(ls::zeros({4})), without(ls::zeros({2}));
  p->set_grad(ls::tensor({-3.0, 0.25, kInf, kNan}));
  nn::clip_grad_value_({p, without}, 0.5);
  const std::vector<double> grad = p->grad().to_vector<double>();
  CHECK((grad[0] == -0.5 && grad[1] == 0.25 && grad[2] == 0.5 && std::isnan(grad[3])));
  CHECK_FALSE(without->grad().defined());
  CHECK(contains(error_of([&] { nn::clip_grad_value_({p}, -1); }), "clip_value is -1"));
  p.set_sharding(nn::Sharding::kPiece);
  nn::clip_grad_value_({p}, 0.25);
  CHECK(p->grad()[0].item<double>() == -0.25);
  p.set_sharding(nn::Sharding::kSharded);
  CHECK(contains(error_of([&] { nn::clip_grad_value_({p}, 1); }), "pass run.parameters()"));
}

TEST_CASE("parameters become a vector and back") {
  const nn::Parameter a(ls::tensor({{1.0, 2.0}, {3.0, 4.0}})), b(ls::tensor({5.0}));
  const ls::Tensor vector = nn::parameters_to_vector({a, b});
  CHECK(vector.to_vector<double>() == std::vector<double>{1, 2, 3, 4, 5});
  ls::sum(vector * vector).backward();
  CHECK(a->grad()[1][0].item<double>() == 6);
  nn::vector_to_parameters(vector.detach() * 2, {b, a});
  CHECK(b->item<double>() == 2);
  CHECK(a->detach().to_vector<double>() == std::vector<double>{4, 6, 8, 10});
  CHECK(contains(error_of([&] { nn::vector_to_parameters(vector, {a}); }),
                 "the vector is (5) f32 cpu, expected shape (4)"));
  b.set_sharding(nn::Sharding::kPiece);
  CHECK(contains(error_of([&] { nn::parameters_to_vector({a, b}); }), "distributed over the ranks"));
  CHECK(contains(error_of([&] { nn::vector_to_parameters(vector, {a, b}); }), "distributed over the ranks"));
}

TEST_CASE("pad_sequence pads at the end, and gradients pass") {
  const ls::Tensor a = ls::tensor({{1.0, 2.0}}), b = ls::tensor({{3.0, 4.0}, {5.0, 6.0}}).requires_grad_();
  const ls::Tensor by_time = nn::pad_sequence({a, b}), by_batch = nn::pad_sequence({a, b}, true, -1);
  CHECK(by_time.shape() == ls::Shape{2, 2, 2});
  CHECK(by_time.to_vector<double>() == std::vector<double>{1, 2, 3, 4, 0, 0, 5, 6});
  CHECK(by_batch.to_vector<double>() == std::vector<double>{1, 2, -1, -1, 3, 4, 5, 6});
  ls::sum(by_batch * by_batch).backward();
  CHECK(b.grad()[1][1].item<double>() == 12);
  CHECK(contains(error_of([] { nn::pad_sequence({}); }), "there are no sequences"));
  CHECK(contains(error_of([] { nn::pad_sequence({ls::tensor(1.0)}); }), "expected (length, ...)"));
}
