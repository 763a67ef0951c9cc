// Tensor parallelism in training: for one number of slices, the same bits on any ranks and in any mode. Ranks are threads.
#include <algorithm>
#include <cmath>

#include "tests/parallel/model_parallel/tensor_training.h"

using namespace tensor_training;

TEST_CASE("slices on any number of ranks have the same bits") {
  for (const int slices : {2, 4, 8}) {
    std::vector<Layout> layouts;
    for (int t = 1; t <= slices; t *= 2) layouts.push_back({.tp = t});
    check_same(slices, {}, layouts);
  }
  for (const int slices : {3, 6}) {
    check_same(slices, {.width = 24, .heads = 6}, {{.tp = slices}, {.tp = 3}});
  }
}

TEST_CASE("models of every kind have the same bits on any number of ranks") {
  for (const ModelOptions& options :
       {ModelOptions{.fused = true}, ModelOptions{.fused = true, .gated = true, .bias = false},
        ModelOptions{.gated = true}, ModelOptions{.frozen = true}, ModelOptions{.fused = true, .frozen = true},
        ModelOptions{.recompute = true}, ModelOptions{.fused = true, .gated = true, .bf16 = true}})
    check_same(4, options, {{.tp = 1}, {.tp = 2}, {.tp = 4}});
}

TEST_CASE("dropout draws the whole tensor's elements, for any number of slices") {
  for (const ModelOptions& options :
       {ModelOptions{.dropout = 0.2}, ModelOptions{.fused = true, .gated = true, .dropout = 0.2},
        ModelOptions{.width = 20, .heads = 4, .dropout = 0.2},  // runs of 10 and 20 columns
        ModelOptions{.recompute = true, .dropout = 0.2}}) {
    check_same(4, options, {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 2, .dp = 2}, {.tp = 2, .dp = 2, .stage = 3}});
    const Outcome one = train(1, {}, options), several = train(4, {.tp = 4}, options);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      CHECK(several.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
  }
  CHECK(train(4, {.tp = 2}, {.recompute = true, .dropout = 0.2}) == train(4, {.tp = 2}, {.dropout = 0.2}));
}

TEST_CASE("layers that are cut along the vocabulary, which is no multiple of the slices") {
  for (const bool tied : {false, true}) {
    for (const bool gathers : {false, true}) {
      const ModelOptions options{.bias = !tied, .vocabulary = true, .tied = tied, .gathers = gathers, .dropout = 0.1};
      check_same(
          4, options,
          {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 2, .dp = 2}, {.tp = 4, .dp = 2}, {.tp = 2, .dp = 2, .stage = 3}});
      const Outcome one = train(1, {}, options), several = train(4, {.tp = 4}, options);
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        CHECK(several.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
        CHECK(several.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("with sequence parallelism") {
  for (const ModelOptions& options :
       {ModelOptions{.sequence = true}, ModelOptions{.vocabulary = true, .sequence = true, .dropout = 0.2},
        ModelOptions{
            .width = 20, .heads = 4, .bias = false, .vocabulary = true, .tied = true, .sequence = true, .dropout = 0.2},
        ModelOptions{.fused = true, .gated = true, .frozen = true, .recompute = true, .sequence = true, .dropout = 0.2},
        ModelOptions{.bf16 = true, .vocabulary = true, .gathers = false, .sequence = true}}) {
    check_same(
        4, options,
        {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 2, .dp = 2}, {.tp = 4, .dp = 2}, {.tp = 2, .dp = 2, .stage = 3}});
    if (options.bf16) continue;
    const Outcome one = train(1, {}, options), several = train(4, {.tp = 4}, options);
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      CHECK(several.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
      CHECK(several.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-4));
    }
  }
}

TEST_CASE("deferred initialisation has the same values") {
  for (const bool fused : {false, true})
    CHECK(train(4, {.tp = 2, .dp = 2, .stage = 3}, {.fused = fused, .deferred = true}) ==
          train(4, {}, {.fused = fused}));
}

TEST_CASE("recomputation changes no bit, by the model or by the plan") {
  for (const bool sequence : {false, true}) {
    const Outcome want = train(4, {.tp = 2}, {.fused = true, .sequence = sequence, .dropout = 0.2});
    CHECK(train(4, {.tp = 2}, {.fused = true, .recompute = true, .sequence = sequence, .dropout = 0.2}) == want);
    const Outcome separate = train(4, {.tp = 2}, {.sequence = sequence, .dropout = 0.2});
    for (const int t : {1, 2, 4})
      CHECK(train(4, {.tp = t}, {.partial_recompute = true, .sequence = sequence, .dropout = 0.2}) == separate);
    for (const Layout& layout : {Layout{.tp = 1}, Layout{.tp = 4}, Layout{.tp = 2, .dp = 2, .stage = 3}})
      CHECK(train(4, layout, {.fused = true, .recompute_style = true, .sequence = sequence, .dropout = 0.2}) == want);
  }
  CHECK(train(1, {}, {.recompute_style = true, .dropout = 0.2}) == train(1, {}, {.dropout = 0.2}));
}

TEST_CASE("slices and data parallelism in every mode") {
  for (const ModelOptions& options : {ModelOptions{}, ModelOptions{.fused = true, .frozen = true}}) {
    std::vector<Layout> layouts{{.tp = 1}, {.tp = 2, .dp = 2}, {.tp = 1, .dp = 4}, {.tp = 4, .dp = 2}};
    for (const int stage : {1, 2, 3})
      for (const auto& [tp, dp] : {std::pair(1, 2), std::pair(2, 2), std::pair(4, 2), std::pair(2, 4)})
        layouts.push_back({.tp = tp, .dp = dp, .stage = stage});
    check_same(4, options, layouts);
  }
}

namespace {

// The parameters after two steps of two batches each. With `is_local`, the gradients of a step's first batch stay on the
// rank; otherwise the means over all ranks are added.
put_together::Parameters train_accumulated(const Layout& layout, bool is_local) {
  put_together::Parameters parameters;
  std::mutex mutex;
  on_mesh_of_threads(4, layout, ModelOptions{}, [&](auto& run, Model&, int d) {
    const nn::CrossEntropyLoss criterion;
    ls::optim::SGD optimizer(run.parameters(), {.lr = 0.5});
    const std::int64_t rows = kSamples / layout.dp;
    const auto add_batch = [&](int number) {
      const ls::Tensor ids =
          (ls::arange(kSamples * (kTime + 1)) * (7 + number) % 23 % kVocabulary).reshape({kSamples, kTime + 1});
      const ls::Tensor own = ids.narrow(0, d * rows, rows);
      run.backward(own.slice(1, 0, kTime), own.slice(1, 1, kTime + 1), [&](const ls::Tensor& x, const ls::Tensor& y) {
        return criterion(run.module()(x).flatten(0, 1), y.flatten());
      });
    };
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      {
        std::optional<par::NoSync> local;
        if (is_local) local.emplace(run.no_sync());
        add_batch(2 * step);
      }
      add_batch(2 * step + 1);
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    for (const par::ShardedParameter& piece : run.named_parameters()) put_together::put(piece, parameters);
  });
  return parameters;
}

}  // namespace

TEST_CASE("no_sync with slices: the bits of all layouts, and the gradients of steps that are synchronised") {
  const put_together::Parameters want = train_accumulated({.dp = 2}, true),
                                 synchronised = train_accumulated({.dp = 2}, false);
  for (const int tp : {1, 2, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Layout layout{.tp = tp, .dp = 2, .stage = stage};
      CAPTURE(layout.describe());
      const put_together::Parameters got = train_accumulated(layout, true);
      for (const auto& each : want) CHECK_MESSAGE(got.at(each.first) == each.second, each.first);
    }
  }
  for (const auto& each : want) {
    const std::vector<float>& others = synchronised.at(each.first);
    float most = 0;
    for (std::size_t i = 0; i < others.size(); ++i) most = std::max(most, std::abs(each.second[i] - others[i]));
    CHECK_MESSAGE(most < 1e-6, each.first);
  }
}

TEST_CASE("with several slices, losses and norms are near those of one") {
  for (const ModelOptions& options : {ModelOptions{}, ModelOptions{.fused = true, .gated = true}}) {
    const Outcome one = train(1, {}, options, kLongRun);
    for (const int slices : {2, 4, 8}) {
      const Outcome several = train(slices, {.tp = 2}, options, kLongRun);
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        CHECK(several.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
        CHECK(several.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-4));
      }
    }
  }
}
