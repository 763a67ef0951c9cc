// run.gathered of models that are cut: whole parameters on all ranks, and the slices afterwards. Ranks are threads.
#include "lockstep/nn/module_runner_internal.h"

#include "tests/parallel/model_parallel/tensor_checkpoint.h"

using namespace tensor_training;

namespace {

const std::vector<Layout> kLayouts{{.tp = 1},
                                   {.tp = 2},
                                   {.tp = 4},
                                   {.tp = 2, .dp = 2},
                                   {.tp = 2, .dp = 2, .stage = 1},
                                   {.tp = 2, .dp = 2, .stage = 2},
                                   {.tp = 4, .dp = 2, .stage = 3},
                                   {.tp = 1, .dp = 2, .stage = 3}};

std::vector<std::string> names_of(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& named : module.named_parameters()) names.push_back(named.first);
  return names;
}

std::size_t runners_in(nn::Module& module) {
  std::size_t count = 0;
  for (nn::Module* each : module.modules()) count += nn::runners_of(*each).size();
  return count;
}

// Whole parameters are those of the checkpoint, and the forward is that of an uncut model with them.
template <class AModel>
void check_gathered(int slices, const Layout& layout, const ModelOptions& options) {
  CAPTURE(layout.describe());
  on_mesh_of_threads<AModel>(slices, layout, options, [&](auto& run, AModel& model, int d) {
    Outcome outcome;
    ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
    train_steps(run, optimizer, layout, options, d, 0, 1, outcome);
    par::save_checkpoint("gathered", {.model = &run});
    const std::vector<std::string> before = names_of(model);
    const std::size_t runners = runners_in(model);
    AModel uncut(options);
    ls::load_checkpoint("gathered", {.model = &uncut});
    const ls::Tensor ids = ls::arange(12).reshape({2, 6});
    const ls::NoGradGuard no_grad;
    uncut.eval();
    const ls::Tensor want = uncut(ids);
    model.eval();
    const auto check = [&] {
      CHECK(names_of(model) == names_of(uncut));
      const ls::StateDict own = model.state_dict(), whole = uncut.state_dict();
      CHECK(own.size() == whole.size());
      for (const auto& each : whole) CHECK_MESSAGE(same_bits(own.at(each.first), each.second), each.first);
      CHECK(nn::parameter_hash(model) == nn::parameter_hash(uncut));
      CHECK(nn::parameter_hash(own) == nn::parameter_hash(whole));
      CHECK(model.blocks[0].parameters()[2].master().requires_grad() ==
            uncut.blocks[0].parameters()[2].master().requires_grad());
      CHECK(same_bits(dynamic_cast<Block&>(model.blocks[1]).mlp.up.weight.tensor(),
                      dynamic_cast<Block&>(uncut.blocks[1]).mlp.up.weight.tensor()));
      CHECK(same_bits(model(ids), want));
    };
    run.gathered(check);
    run.gathered([&] { run.gathered(check); });
    CHECK(names_of(model) == before);
    CHECK(runners_in(model) == runners);
    CHECK_THROWS_AS(run.gathered([] { throw std::runtime_error("of the body"); }), std::runtime_error);
    CHECK(names_of(model) == before);
    CHECK(runners_in(model) == runners);
    CHECK(contains(error_of([&] { model.state_dict(); }), "inside run.gathered"));
  });
}

}  // namespace

TEST_CASE("inside gathered a model has whole parameters under plain names, and computes with them") {
  for (const Layout& layout : kLayouts) check_gathered<Model>(4, layout, {.fused = true, .dropout = 0.1});
  for (const ModelOptions& options : {ModelOptions{.frozen = true, .deferred = true}, ModelOptions{.bias = false}})
    check_gathered<TiedModel>(2, {.tp = 2, .dp = 2, .stage = 3}, options);
  check_gathered<TiedModel>(2, {.tp = 2}, {.gated = true});
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 4}, Layout{.tp = 4, .dp = 2, .stage = 3}})
    check_gathered<Model>(4, layout, {.vocabulary = true, .tied = true});  // slices of 5, 5, 5 and 4 rows
}

TEST_CASE("gathered between steps changes no bit of the training") {
  for (const Layout& layout : kLayouts) {
    const auto end_of = [&](bool gathers) {
      on_mesh_of_threads(4, layout, {.dropout = 0.1}, [&](auto& run, Model& model, int d) {
        Outcome outcome;
        ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
        for (int step = 0; step < 3; ++step) {
          train_steps(run, optimizer, layout, {}, d, step, step + 1, outcome);
          if (gathers) run.gathered([&] { static_cast<void>(model.state_dict()); });
        }
        par::save_checkpoint("trained", {.model = &run, .optimizer = &optimizer});
      });
      return content_of_file("trained");
    };
    CHECK(end_of(true) == end_of(false));
  }
}

TEST_CASE("a change of a whole parameter is lost, and refused") {
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 2, .dp = 2}, Layout{.tp = 2, .dp = 2, .stage = 3}}) {
    on_mesh_of_threads(4, layout, {}, [&](auto& run, Model& model, int) {
      CAPTURE(layout.describe());
      const auto weight = [&]() -> const ls::Tensor& { return dynamic_cast<Block&>(model.blocks[0]).mlp.up.weight; };
      const auto text_of = [&](const auto& change) {
        return error_of([&] {
          run.gathered([&] {
            const ls::NoGradGuard no_grad;
            change();
          });
        });
      };
      const std::string want =
          "blocks.0.mlp.up.weight was changed inside gathered, and the change is lost; change a model that tensor "
          "parallelism has cut by its optimizer or by parallel::load_checkpoint";
      ls::Tensor before;
      run.gathered([&] { before = weight().detach().clone(); });
      CHECK(text_of([&] { weight().detach().fill_(1); }) == want);
      CHECK(text_of([&] { weight().detach().select(0, 0).mul_(2); }) == want);
      run.gathered([&] { CHECK(same_bits(weight().detach(), before)); });
    });
  }
}

TEST_CASE("the hash of a state dict depends on names' order and on values, not on the order of its entries") {
  const ls::Tensor a = ls::tensor({1.0f, 2.0f}), b = ls::tensor({3.0f});
  const std::uint64_t hash = nn::parameter_hash({{"a", a}, {"b", b}});
  CHECK(nn::parameter_hash({{"b", b}, {"a", a}}) == hash);
  CHECK(nn::parameter_hash({{"a", b}, {"b", a}}) != hash);
  CHECK(nn::parameter_hash({{"a", a}}) != hash);
  ls::save({{"b", b}, {"a", a}}, "hashed.safetensors");
  CHECK(nn::parameter_hash(ls::load("hashed.safetensors")) == hash);
}
