// The effect of a step on parameters, gradients, versions and devices, compared with closed forms.
#include "tests/optim/support.h"

TEST_CASE("plain SGD subtracts lr times the gradient") {
  const auto p = parameter({1, 2, 3});
  ls::optim::SGD optimizer({p}, {.lr = 0.5});
  set_grad(p, {2, -4, 0});
  optimizer.step();
  CHECK(values(p) == std::vector<double>{0, 4, 3});
}

TEST_CASE("a constant gradient through momentum moves a parameter by the geometric series") {
  const auto p = parameter({0});
  ls::optim::SGD optimizer({p}, {.lr = 1, .momentum = 0.5});
  double velocity = 0, expected = 0;
  for (int i = 0; i < 5; ++i) {
    set_grad(p, {1});
    optimizer.step();
    velocity = 0.5 * velocity + 1;
    expected -= velocity;
    CHECK(values(p)[0] == expected);
  }
}

TEST_CASE("Adam's first step is lr times the gradient's sign, for any magnitude") {
  const auto p = parameter({1, 1});
  ls::optim::Adam optimizer({p}, {.lr = 0.25, .eps = 0});
  set_grad(p, {1e-3, -1e3});
  optimizer.step();
  CHECK(values(p)[0] == doctest::Approx(0.75));
  CHECK(values(p)[1] == doctest::Approx(1.25));
}

TEST_CASE("a step changes neither a parameter without gradient nor its momentum") {
  const auto a = parameter({1}), b = parameter({1});
  ls::optim::SGD optimizer({a, b}, {.lr = 0.5, .momentum = 0.5, .weight_decay = 0.5});
  set_grad(a, {0});
  optimizer.step();
  CHECK(values(b)[0] == 1);
  CHECK(!optimizer.state_dict().contains("state.1.momentum_buffer"));
}

TEST_CASE("zero_grad makes gradients undefined") {
  const auto p = parameter({1});
  ls::optim::SGD optimizer({p});
  set_grad(p, {1});
  optimizer.zero_grad();
  CHECK(!p->grad().defined());
}

TEST_CASE("a step is written into the parameter's memory and counts as a change of it") {
  const auto p = parameter({1});
  ls::optim::AdamW optimizer({p});
  set_grad(p, {1});
  const void* memory = p->raw_data();
  const auto version = p->version();
  optimizer.step();
  CHECK(p->raw_data() == memory);
  CHECK(p->version() > version);
}

TEST_CASE("steps allocate no memory once the state exists") {
  const auto p = parameter({1, 2, 3});
  ls::optim::AdamW adamw({p});
  ls::optim::SGD sgd({p}, {.momentum = 0.9});
  set_grad(p, {1, 1, 1});
  adamw.step();
  sgd.step();
  const auto before = ls::allocator_stats().allocations;
  for (int i = 0; i < 10; ++i) {
    adamw.step();
    sgd.step();
  }
  CHECK(ls::allocator_stats().allocations == before);
}

TEST_CASE("backward after a step fails for a graph that saved the parameter before the step") {
  const auto p = parameter({3});
  ls::optim::SGD optimizer({p}, {.lr = 0.1});
  const ls::Tensor y = ls::sum(*p * *p);
  set_grad(p, {1});
  optimizer.step();
  CHECK_THROWS_AS(y.backward(), ls::InvalidArgument);
}

TEST_CASE("the state follows a parameter to another device and dtype") {
  ls::nn::Linear layer(2, 1);
  ls::optim::SGD optimizer(layer.parameters(), {.lr = 0.5, .momentum = 0.5});
  const auto step = [&] {
    const ls::TensorOptions options = layer.weight->options();
    optimizer.zero_grad();
    ls::sum(layer(ls::ones({1, 2}, options))).backward();
    optimizer.step();
  };
  step();
  layer.to("cpu:1");
  layer.to(ls::kFloat64);
  step();
  const ls::Tensor buffer = optimizer.state_dict().at("state.0.momentum_buffer");
  CHECK(buffer.device() == ls::Device("cpu:1"));
  CHECK(buffer.dtype() == ls::kFloat64);
  CHECK(values(buffer.to("cpu")) == std::vector<double>{1.5, 1.5});
}

TEST_CASE("training in f16 and bf16 is refused, and the message shows the parameter and the fix") {
  const auto check = [](const std::string& type, const Make& make) {
    for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16}) {
      const ls::nn::Parameter full(ls::ones({2, 2})), half(ls::ones({2, 2}, {.dtype = dtype}));
      for (const ls::nn::Parameter& p : {full, half}) p->set_grad(ls::ones_like(p));
      const auto optimizer = make({full, half});
      CHECK(error_of([&] { optimizer->step(); }) ==
            type + ": parameters()[1] is " + ls::describe(half) +
                "; optimizers update f32 and f64 parameters\nKeep the model in f32, and compute in f16 or bf16 with "
                "AutocastGuard (f16 with GradScaler), or convert it first with model.to(kFloat32)");
    }
  };
  namespace optim = ls::optim;
  check("SGD", make<optim::SGD>(optim::SGDOptions()));
  check("Adam", make<optim::Adam>(optim::AdamOptions()));
  check("AdamW", make<optim::AdamW>(optim::AdamWOptions()));
  check("RMSprop", make<optim::RMSprop>(optim::RMSpropOptions()));
  check("Adagrad", make<optim::Adagrad>(optim::AdagradOptions()));
  check("Lion", make<optim::Lion>(optim::LionOptions()));
  check("NAdam", make<optim::NAdam>(optim::NAdamOptions()));
  check("RAdam", make<optim::RAdam>(optim::RAdamOptions()));
  check("Adafactor", make<optim::Adafactor>(optim::AdafactorOptions()));
  check("Muon", make<optim::Muon>(optim::MuonOptions()));
}

TEST_CASE("an expanded parameter is refused, because its elements share memory") {
  const ls::nn::Parameter p(ls::zeros({1}).expand({3}));
  p->set_grad(ls::tensor({1.0, 2.0, 3.0}));
  ls::optim::SGD sgd({p});
  ls::optim::Adam adam({p});
  CHECK(contains(error_of([&] { sgd.step(); }), "sgd_step: (3) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { adam.step(); }), "adam_step: (3) f32 cpu is expanded"));
  CHECK(values(p) == std::vector<double>{0, 0, 0});
}

TEST_CASE("a parameter without elements is stepped like any other: steps count, and its state has no elements") {
  const auto check = [](auto make, const std::vector<const char*>& buffers, bool counts) {
    const auto empty = parameter({}), full = parameter({1, 2, 3}), alone = parameter({1, 2, 3});
    auto optimizer = make({empty, full}), other = make({alone});
    for (int i = 0; i < 3; ++i) {
      set_grad(empty, {});
      set_grad(full, {1, -2, 0.5});
      set_grad(alone, {1, -2, 0.5});
      optimizer->step();
      other->step();
    }
    CHECK(values(full) == values(alone));
    const ls::StateDict state = optimizer->state_dict();
    for (const char* buffer : buffers) {
      INFO(buffer);
      CHECK(state.at(std::string("state.0.") + buffer).shape() == ls::Shape{0});
      CHECK(state.at(std::string("state.0.") + buffer).dtype() == ls::kFloat64);
    }
    CHECK(state.contains("state.0.step") == counts);
    if (counts) CHECK(state.at("state.0.step").template item<std::int64_t>() == 3);

    const auto fresh = parameter({});  // of a rank that has nothing else
    auto only = make({fresh});
    set_grad(fresh, {});
    only->step();
    CHECK(only->state_dict().contains("state.0.step") == counts);
    only->load_state_dict(only->state_dict());
  };
  using Parameters = std::vector<ls::nn::Parameter>;
  check([](const Parameters& p) { return std::make_unique<ls::optim::SGD>(p); }, {}, false);
  check([](const Parameters& p) { return std::make_unique<ls::optim::SGD>(p, ls::optim::SGDOptions{.momentum = 0.9}); },
        {"momentum_buffer"}, false);
  check([](const Parameters& p) { return std::make_unique<ls::optim::Adam>(p); }, {"exp_avg", "exp_avg_sq"}, true);
  check([](const Parameters& p) { return std::make_unique<ls::optim::AdamW>(p); }, {"exp_avg", "exp_avg_sq"}, true);
}
