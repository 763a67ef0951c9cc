// RMSprop, Adagrad, Lion, amsgrad and L-BFGS: compared with PyTorch, saved and loaded, and refused.
#include <map>

#include "tests/optim/support.h"

namespace optim = ls::optim;

namespace {

const ls::StateDict& values_of_pytorch() {
  static const ls::StateDict dict = golden("breadth");
  return dict;
}

const std::map<std::string, Make>& cases() {
  using optim::RMSprop, optim::RMSpropOptions, optim::Adagrad, optim::AdagradOptions;
  static const std::map<std::string, Make> all = {
      {"adam_amsgrad", make<optim::Adam>(optim::AdamOptions{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true})},
      {"adamw_amsgrad",
       make<optim::AdamW>(optim::AdamWOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.5, .amsgrad = true})},
      {"rmsprop", make<RMSprop>(RMSpropOptions{})},
      {"rmsprop_momentum", make<RMSprop>(RMSpropOptions{.alpha = 0.9, .weight_decay = 0.1, .momentum = 0.8})},
      {"rmsprop_centered", make<RMSprop>(RMSpropOptions{.alpha = 0.9, .eps = 1e-3, .centered = true})},
      {"rmsprop_all",
       make<RMSprop>(RMSpropOptions{.eps = 1e-3, .weight_decay = 0.1, .momentum = 0.9, .centered = true})},
      {"adagrad", make<Adagrad>(AdagradOptions{.lr = 0.1})},
      {"adagrad_all",
       make<Adagrad>(AdagradOptions{
           .lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1, .initial_accumulator_value = 0.5, .eps = 1e-3})},
      {"lion", make<optim::Lion>(optim::LionOptions{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.7, .weight_decay = 0.1})},
  };
  return all;
}

// Rosenbrock's function of both parameters, as in golden_breadth.py.
struct Rosenbrock {
  ls::nn::Parameter a = parameter({-1.2, 1.0, 0.3});
  ls::nn::Parameter b{ls::tensor({{0.5, -0.7}, {1.5, 0.1}}, {.dtype = ls::kFloat64})};
  int calls = 0;

  ls::Tensor position() const { return ls::cat({a->detach(), b->detach().reshape({-1})}); }
  ls::Tensor step(optim::Optimizer& optimizer) {
    return optimizer.step([&] {
      ++calls;
      optimizer.zero_grad();
      const ls::Tensor x = ls::cat({a, b->reshape({-1})}), next = x.narrow(0, 1, 6), own = x.narrow(0, 0, 6);
      const ls::Tensor loss = ls::sum(100 * ls::pow(next - own * own, 2) + ls::pow(1 - own, 2));
      loss.backward();
      return loss;
    });
  }
};

void check_lbfgs(const std::string& name, const optim::LBFGSOptions& options) {
  INFO(name);
  Rosenbrock problem;
  optim::LBFGS optimizer({problem.a, problem.b}, options);
  const ls::Tensor after = values_of_pytorch().at(name + "/after"), losses = values_of_pytorch().at(name + "/losses");
  for (std::int64_t step = 0; step < after.size(0); ++step) {
    INFO("step ", step);
    check_close(problem.step(optimizer), losses[step], "loss", {1e-8, 1e-10});
    check_close(problem.position(), after[step], "parameters", {1e-8, 1e-10});
  }
}

}  // namespace

TEST_CASE("ten steps of RMSprop, Adagrad, Lion and amsgrad equal PyTorch's, in f32 and f64") {
  for (const auto& [name, make_optimizer] : cases()) {
    for (const std::string tag : {"f32", "f64"}) {
      const ls::nn::Parameter p(values_of_pytorch().at("optim." + tag + "/start").clone());
      const ls::Tensor gradients = values_of_pytorch().at("optim." + tag + "/gradients");
      const ls::Tensor expected = values_of_pytorch().at(name + "." + tag + "/after");
      const auto optimizer = make_optimizer({p});
      for (std::int64_t step = 0; step < gradients.size(0); ++step) {
        p->set_grad(gradients[step].clone());
        optimizer->step();
        check_close(p->detach(), expected[step], name + " " + tag,
                    tag == "f64" ? Tolerance{1e-12, 1e-14} : Tolerance{1e-5, 1e-6});
      }
    }
  }
}

TEST_CASE("every golden optimizer run of breadth.safetensors has its case here") {
  for (const auto& entry : values_of_pytorch()) {
    const std::string& key = entry.first;
    if (key.ends_with(".f64/after")) CHECK_MESSAGE(cases().contains(key.substr(0, key.find('.'))), key);
  }
}

TEST_CASE("a saved and loaded optimizer continues with the same bits") {
  for (const auto& one : cases()) {
    INFO(one.first);
    const ls::nn::Parameter p = parameter({1, -2, 3}), q = parameter({0, 0, 0});
    const auto first = one.second({p}), second = one.second({q});
    const auto step = [](optim::Optimizer& optimizer, const ls::nn::Parameter& parameter, int at) {
      set_grad(parameter, {0.5 - at, 2.0, -0.25 * at});
      optimizer.step();
    };
    for (int at = 0; at < 3; ++at) step(*first, p, at);
    second->load_state_dict(first->state_dict());
    q->detach().copy_(p->detach());
    for (int at = 3; at < 6; ++at) step(*first, p, at), step(*second, q, at);
    CHECK(same_bits(p->detach(), q->detach()));
    CHECK(same_bits(first->state_dict(), second->state_dict()));
  }
}

TEST_CASE("the state has PyTorch's names, and buffers of options that are off are left out") {
  const ls::nn::Parameter p = parameter({1});
  set_grad(p, {1});
  const auto names = [&](const std::string& name) {
    const auto optimizer = cases().at(name)({p});
    optimizer->step();
    std::string text;
    for (const auto& entry : optimizer->state_dict()) {
      if (entry.first.starts_with("state.0.")) text += entry.first.substr(8) + " ";
    }
    return text;
  };
  CHECK(names("adam_amsgrad") == "step exp_avg exp_avg_sq max_exp_avg_sq ");
  CHECK(names("rmsprop") == "step square_avg ");
  CHECK(names("rmsprop_centered") == "step square_avg grad_avg ");
  CHECK(names("rmsprop_all") == "step square_avg momentum_buffer grad_avg ");
  CHECK(names("adagrad") == "step sum ");
  CHECK(names("lion") == "exp_avg ");
}

TEST_CASE("a state of Adam that was saved before amsgrad existed loads, with the flag off") {
  const ls::nn::Parameter p = parameter({1});
  optim::Adam saved({p}), loaded({p}, {.amsgrad = true});
  ls::StateDict old;
  for (const auto& [key, tensor] : saved.state_dict()) {
    if (!key.ends_with("amsgrad")) old.insert(key, tensor);
  }
  loaded.load_state_dict(old);
  CHECK(!loaded.state_dict().at("param_groups.0.amsgrad").item<bool>());
}

TEST_CASE("options out of range are refused with their value") {
  const Parameters p = {parameter({0})};
  CHECK(
      contains(error_of([&] { optim::RMSprop(p, {.alpha = 1}); }), "RMSprop: alpha is 1, expected a number in [0, 1)"));
  CHECK(contains(error_of([&] { optim::RMSprop(p, {.momentum = -1}); }), "RMSprop: momentum is -1"));
  CHECK(contains(error_of([&] { optim::Adagrad(p, {.lr_decay = -1}); }), "Adagrad: lr_decay is -1"));
  CHECK(
      contains(error_of([&] { optim::Adagrad(p, {.initial_accumulator_value = kNan}); }), "accumulator_value is nan"));
  CHECK(contains(error_of([&] { optim::Lion(p, {.beta2 = 1}); }), "Lion: beta2 is 1"));
  CHECK(contains(error_of([&] { optim::LBFGS(p, {.max_iter = 0}); }), "LBFGS: max_iter is 0, expected at least 1"));
  CHECK(contains(error_of([&] { optim::LBFGS(p, {.tolerance_grad = -1}); }), "LBFGS: tolerance_grad is -1"));
}

TEST_CASE("a group that is added later is stepped with its own options; a wrong one changes nothing") {
  const ls::nn::Parameter a = parameter({0}), b = parameter({0}), c = parameter({0});
  optim::SGD sgd({a}, {.lr = 1, .weight_decay = 0.5});
  sgd.add_param_group({.params = {b}, .lr = 0.25});
  CHECK(sgd.group_count() == 2);
  CHECK(contains(error_of([&] { sgd.add_param_group({.params = {c, a}}); }), "parameter 1 of group 2"));
  CHECK(contains(error_of([&] { sgd.add_param_group({.params = {c}, .lr = -1}); }), "lr is -1"));
  for (const ls::nn::Parameter& p : {a, b, c}) set_grad(p, {1});
  sgd.step();
  CHECK(values(a) == std::vector<double>{-1});
  CHECK(values(b) == std::vector<double>{-0.25});
  CHECK(values(c) == std::vector<double>{0});
  CHECK(sgd.state_dict().at("param_groups.1.weight_decay").item<double>() == 0.5);
}

TEST_CASE("step with a closure computes gradients, also under NoGradGuard, and returns the loss") {
  const ls::nn::Parameter p = parameter({3});
  optim::RMSprop rmsprop({p}, {.lr = 0.5, .alpha = 0});
  const ls::NoGradGuard no_grad;
  const ls::Tensor loss = rmsprop.step([&] {
    const ls::Tensor value = ls::sum(p * p);
    value.backward();
    return value;
  });
  CHECK(loss.item<double>() == 9);
  CHECK(values(p)[0] == doctest::Approx(2.5));
}

TEST_CASE("LBFGS finds PyTorch's iterates with and without line search") {
  check_lbfgs("lbfgs", {.lr = 0.002, .max_iter = 5, .history_size = 3});
  check_lbfgs("lbfgs_wolfe", {.max_iter = 4, .line_search_fn = optim::LineSearch::kStrongWolfe});
  check_lbfgs("lbfgs_wolfe_few",
              {.lr = 5, .max_iter = 3, .max_eval = 4, .line_search_fn = optim::LineSearch::kStrongWolfe});
}

TEST_CASE("LBFGS with a line search minimises Rosenbrock's function") {
  Rosenbrock problem;
  problem.a->detach().fill_(0.5);
  problem.b->detach().fill_(0.5);
  optim::LBFGS optimizer({problem.a, problem.b}, {.max_iter = 100, .line_search_fn = optim::LineSearch::kStrongWolfe});
  problem.step(optimizer);
  check_close(problem.position(), ls::ones({7}, {.dtype = ls::kFloat64}), "the minimum", {0, 1e-4});
  CHECK(problem.calls <= 125);
}

TEST_CASE("a saved and loaded LBFGS continues with the same bits") {
  Rosenbrock one, two;
  const optim::LBFGSOptions options = {
      .max_iter = 3, .history_size = 4, .line_search_fn = optim::LineSearch::kStrongWolfe};
  optim::LBFGS first({one.a, one.b}, options), second({two.a, two.b});
  for (int step = 0; step < 3; ++step) one.step(first);
  const ls::StateDict state = first.state_dict();
  CHECK(state.contains("state.0.old_dirs.3"));
  CHECK(!state.contains("state.0.old_dirs.4"));
  second.load_state_dict(state);
  two.a->detach().copy_(one.a->detach());
  two.b->detach().copy_(one.b->detach());
  one.step(first);
  two.step(second);
  CHECK(same_bits(one.position(), two.position()));
  CHECK(same_bits(first.state_dict(), second.state_dict()));
}

TEST_CASE("LBFGS refuses pieces of parameters, a step without closure, and a state in another order") {
  const ls::nn::Parameter piece = parameter({1, 2});
  piece.set_sharding(ls::nn::Sharding::kPiece);
  CHECK(contains(error_of([&] { optim::LBFGS({piece}); }), "LBFGS: a parameter is distributed over the ranks"));
  Rosenbrock problem;
  optim::LBFGS optimizer({problem.a, problem.b}), turned({problem.b, problem.a});
  CHECK(contains(error_of([&] { optimizer.step(); }), "needs a closure"));
  problem.step(optimizer);
  const optim::NamedParameters names = {{"a", problem.a}, {"b", problem.b}};
  CHECK(contains(error_of([&] { turned.prepare_load(optimizer.shared_state(names), names); }), "in another order"));
}
