// NAdam, RAdam, Adafactor and Muon: compared with PyTorch, saved and loaded, and refused.
#include <map>

#include "tests/optim/support.h"

namespace optim = ls::optim;

namespace {

const ls::StateDict& dict() {
  static const ls::StateDict values = golden("more");
  return values;
}

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = {
      {"nadam", make<optim::NAdam>(optim::NAdamOptions{})},
      {"nadam_all",
       make<optim::NAdam>(optim::NAdamOptions{
           .lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum_decay = 0.1})},
      {"nadam_decoupled", make<optim::NAdam>(optim::NAdamOptions{.weight_decay = 0.1, .decoupled_weight_decay = true})},
      {"radam", make<optim::RAdam>(optim::RAdamOptions{.lr = 0.02})},
      {"radam_all", make<optim::RAdam>(
                        optim::RAdamOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1})},
      {"radam_decoupled",
       make<optim::RAdam>(optim::RAdamOptions{.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = true})},
      {"adafactor", make<optim::Adafactor>(optim::AdafactorOptions{})},
      {"adafactor_all",
       make<optim::Adafactor>(optim::AdafactorOptions{
           .lr = 0.2, .beta2_decay = -0.5, .eps1 = 1e-4, .eps2 = 1e-2, .d = 1.5, .weight_decay = 0.1})},
      {"muon", make<optim::Muon>(optim::MuonOptions{})},
      {"muon_plain", make<optim::Muon>(optim::MuonOptions{.lr = 0.05,
                                                          .weight_decay = 0,
                                                          .momentum = 0.8,
                                                          .nesterov = false,
                                                          .ns_a = 3.0,
                                                          .ns_b = -3.2,
                                                          .ns_c = 1.2,
                                                          .ns_steps = 3,
                                                          .adjust_lr_fn = optim::MuonScale::kMatchRmsAdamW})},
      {"muon_spectral",
       make<optim::Muon>(optim::MuonOptions{.lr = 0.02, .adjust_lr_fn = optim::MuonScale::kSpectralUnclamped})},
  };
  return all;
}

bool is_muon(const std::string& name) { return name.starts_with("muon"); }

// A matrix, a tall one and, unless for Muon, a vector.
Parameters starts(const std::string& name, const std::string& tag) {
  Parameters parameters;
  for (int i = 0; i < (is_muon(name) ? 2 : 3); ++i)
    parameters.emplace_back(dict().at("optimizers." + tag + "/start" + std::to_string(i)).clone());
  return parameters;
}

void set_gradients(const Parameters& parameters, const std::string& tag, std::int64_t step) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i]->set_grad(dict().at("optimizers." + tag + "/gradients" + std::to_string(i))[step].clone());
}

}  // namespace

TEST_CASE("twenty steps of NAdam, RAdam, Adafactor and Muon equal PyTorch's, in f32 and f64") {
  for (const auto& one : cases()) {
    const auto& name = one.first;
    const Make& make_optimizer = one.second;
    for (const std::string& tag : float_tags()) {
      const Parameters parameters = starts(name, tag);
      const auto optimizer = make_optimizer(parameters);
      for (std::int64_t step = 0; step < 20; ++step) {
        INFO(name, " ", tag, " step ", step);
        set_gradients(parameters, tag, step);
        optimizer->step();
        for (std::size_t i = 0; i < parameters.size(); ++i)
          check_close(parameters[i]->detach(), dict().at(name + "." + tag + "/after" + std::to_string(i))[step],
                      "parameter " + std::to_string(i), tag == "f64" ? Tolerance{1e-12, 1e-14} : Tolerance{2e-5, 2e-6});
      }
    }
  }
}

TEST_CASE("every golden optimizer run of more.safetensors has its case here") {
  for (const auto& entry : dict()) {
    const std::string& key = entry.first;
    if (key.ends_with(".f64/after0")) CHECK_MESSAGE(cases().contains(key.substr(0, key.find('.'))), key);
  }
}

TEST_CASE("a saved and loaded optimizer continues with the same bits, by index and by name") {
  struct Net : ls::nn::Module {
    explicit Net(const Parameters& own) {
      for (std::size_t i = 0; i < own.size(); ++i) add_parameter("p" + std::to_string(i), own[i]);
    }
  };
  for (const auto& one : cases()) {
    const auto& name = one.first;
    const Make& make_optimizer = one.second;
    for (const bool by_name : {false, true}) {
      INFO(name, by_name);
      const Parameters own = starts(name, "f64"), two = starts(name, "f64");
      const Net first_net(own), second_net(two);
      const auto first = make_optimizer(own), second = make_optimizer(two);
      for (std::int64_t step = 0; step < 3; ++step) set_gradients(own, "f64", step), first->step();
      second->load_state_dict(first->state_dict(by_name ? &first_net : nullptr), by_name ? &second_net : nullptr);
      for (std::size_t i = 0; i < own.size(); ++i) two[i]->detach().copy_(own[i]->detach());
      for (std::int64_t step = 3; step < 6; ++step) {
        set_gradients(own, "f64", step), first->step();
        set_gradients(two, "f64", step), second->step();
      }
      for (std::size_t i = 0; i < own.size(); ++i) CHECK(same_bits(own[i]->detach(), two[i]->detach()));
      CHECK(same_bits(first->state_dict(), second->state_dict()));
    }
  }
}

TEST_CASE("the state has PyTorch's names, and Adafactor's that of the parameter's dimensions") {
  const auto names = [&](const std::string& name, int parameter) {
    const Parameters parameters = starts(name, "f64");
    const auto optimizer = cases().at(name)(parameters);
    set_gradients(parameters, "f64", 0);
    optimizer->step();
    const std::string prefix = "state." + std::to_string(parameter) + ".";
    std::string text;
    for (const auto& [key, tensor] : optimizer->state_dict()) {
      if (key.starts_with(prefix)) text += key.substr(prefix.size()) + tensor.shape().to_string() + " ";
    }
    return text;
  };
  CHECK(names("nadam", 2) == "step() exp_avg(4) exp_avg_sq(4) ");
  CHECK(names("radam", 0) == "step() exp_avg(3, 4) exp_avg_sq(3, 4) ");
  CHECK(names("muon", 1) == "momentum_buffer(5, 2) ");
  CHECK(names("adafactor", 1) == "step() row_var(5, 1) col_var(1, 2) ");
  CHECK(names("adafactor", 2) == "step() variance(4) ");
}

TEST_CASE("a state of Adafactor for another shape is refused") {
  const Parameters matrix = {ls::nn::Parameter(ls::ones({3, 4}))}, other = {ls::nn::Parameter(ls::ones({4, 3}))};
  optim::Adafactor saved(matrix), loaded(other);
  matrix[0]->set_grad(ls::ones({3, 4}));
  saved.step();
  CHECK(contains(error_of([&] { loaded.load_state_dict(saved.state_dict()); }), "state.0.row_var is (3, 1) f32 cpu"));
}

TEST_CASE("a parameter without a gradient keeps its values and its state") {
  for (const auto& one : cases()) {
    const auto& name = one.first;
    const Make& make_optimizer = one.second;
    INFO(name);
    const Parameters parameters = starts(name, "f64");
    const auto optimizer = make_optimizer(parameters);
    parameters[0]->set_grad(ls::ones_like(parameters[0]->detach()));
    optimizer->step();
    CHECK(ls::equal(parameters[1]->detach(), dict().at("optimizers.f64/start1")));
    CHECK(!optimizer->state_dict().contains("state.1.step"));
  }
}

TEST_CASE("options out of range are refused with their value") {
  const Parameters p = {ls::nn::Parameter(ls::ones({2, 2}))};
  CHECK(contains(error_of([&] { optim::NAdam(p, {.beta1 = 1}); }), "NAdam: beta1 is 1, expected a number in [0, 1)"));
  CHECK(contains(error_of([&] { optim::NAdam(p, {.momentum_decay = -1}); }), "NAdam: momentum_decay is -1"));
  CHECK(contains(error_of([&] { optim::RAdam(p, {.lr = kNan}); }), "RAdam: lr is nan"));
  CHECK(contains(error_of([&] { optim::Adafactor(p, {.beta2_decay = 0.1}); }), "beta2_decay is 0.1, expected"));
  CHECK(contains(error_of([&] { optim::Adafactor(p, {.d = 0.5}); }), "Adafactor: d is 0.5, expected at least 1"));
  CHECK(contains(error_of([&] { optim::Adafactor(p, {.eps1 = -2}); }), "Adafactor: eps1 is -2"));
  CHECK(contains(error_of([&] { optim::Muon(p, {.ns_steps = 100}); }), "Muon: ns_steps is 100"));
  CHECK(contains(error_of([&] { optim::Muon(p, {.momentum = -1}); }), "Muon: momentum is -1"));
  CHECK(contains(error_of([] { optim::NAdam(Parameters{}); }), "NAdam: no parameters were given"));
}

TEST_CASE("Muon and Adafactor refuse parts of parameters, and Muon what is no matrix") {
  CHECK(contains(error_of([] { optim::Muon({parameter({1, 2})}); }), "Muon: a parameter is (2) f64 cpu, expected"));
  const ls::nn::Parameter piece(ls::ones({2, 2}));
  piece.set_sharding(ls::nn::Sharding::kPiece);
  CHECK(contains(error_of([&] { optim::Muon({piece}); }), "Muon: a parameter is distributed over the ranks"));
  CHECK(contains(error_of([&] { optim::Adafactor({piece}); }), "Adafactor: a parameter is distributed over the ranks"));
  const ls::nn::Parameter stage(ls::ones({2, 2}));
  stage.set_sharding(ls::nn::Sharding::kStage);
  CHECK(contains(error_of([&] { optim::Adafactor({stage}); }), "Adafactor: the parameters are those of one stage"));
  CHECK_NOTHROW(optim::Muon({stage}));
}

TEST_CASE("groups have their own options, and schedulers set the rate") {
  const ls::nn::Parameter a(ls::ones({2, 2})), b(ls::ones({2, 2}));
  optim::Muon muon(std::vector<optim::MuonGroup>{{.params = {a}, .lr = 0.5, .weight_decay = 0}, {.params = {b}}});
  CHECK(muon.lr(0) == 0.5);
  CHECK(muon.lr(1) == 1e-3);
  optim::StepLR schedule(muon, {.step_size = 1, .gamma = 0.1});
  schedule.step();
  CHECK(muon.lr(0) == doctest::Approx(0.05));
  CHECK(muon.state_dict().at("param_groups.0.ns_coefficients").to_vector<double>() ==
        std::vector<double>{3.4445, -4.7750, 2.0315});
  CHECK(muon.state_dict().at("param_groups.0.nesterov").item<bool>());
}
