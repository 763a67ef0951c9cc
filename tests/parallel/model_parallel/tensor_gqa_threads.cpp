// Grouped-query attention with fewer heads of keys and values than slices: slices share these heads, and the bits do not
// depend on which ranks have them. Ranks are threads.
#include "tests/parallel/model_parallel/tensor_gqa.h"

using namespace tensor_training;

TEST_CASE("shared heads have the same bits on any number of ranks") {
  const std::vector<Layout> ranks{{.tp = 1}, {.tp = 2}, {.tp = 4}};
  for (const GqaOptions& options :
       {GqaOptions{.repeat = 2}, GqaOptions{.kv_heads = 1, .repeat = 4}, GqaOptions{.kv_heads = 4},
        GqaOptions{.repeat = 2, .bias = false}, GqaOptions{.repeat = 2, .frozen = true},
        GqaOptions{.repeat = 2, .recompute = true}, GqaOptions{.repeat = 2, .bf16 = true}})
    check_same_bits(4, gqa_subject(options), ranks);
  check_same_bits(8, gqa_subject({.kv_heads = 2, .repeat = 4}), {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 8}});
  check_same_bits(8, gqa_subject({.kv_heads = 4, .repeat = 2}), {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 8}});
}

TEST_CASE("heads that are shared by three slices, also of two ranks") {
  const GqaOptions options{.heads = 12, .kv_heads = 4, .repeat = 3};
  check_same_bits(12, gqa_subject(options), {{.tp = 3}, {.tp = 6}, {.tp = 12}});  // 4 slices on a rank, 2, and 1
  check_near(12, {.tp = 3}, gqa_subject(options));
  check_near(12, {.tp = 12}, gqa_subject(options));
}

TEST_CASE("dropout of grouped heads draws the elements of all heads") {
  for (const GqaOptions& options : {GqaOptions{.repeat = 2, .dropout = 0.2}, GqaOptions{.kv_heads = 4, .dropout = 0.2},
                                    GqaOptions{.repeat = 2, .recompute = true, .dropout = 0.2}}) {
    check_same_bits(4, gqa_subject(options), {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 2, .dp = 2, .stage = 3}});
    for (const int t : {1, 2, 4}) check_near(4, {.tp = t}, gqa_subject(options));
  }
  CHECK(train_subject(4, {.tp = 4}, gqa_subject({.repeat = 2, .recompute = true, .dropout = 0.2})) ==
        train_subject(4, {.tp = 4}, gqa_subject({.repeat = 2, .dropout = 0.2})));
}

TEST_CASE("shared heads and data parallelism; deferred initialisation") {
  std::vector<Layout> layouts{{.tp = 1}, {.tp = 2, .dp = 2}, {.tp = 4, .dp = 2}};
  for (const int stage : {1, 2, 3}) layouts.push_back({.tp = 4, .dp = 2, .stage = stage});
  layouts.push_back({.tp = 1, .dp = 2, .stage = 3});
  check_same_bits(4, gqa_subject({.repeat = 2}), layouts);
  check_same_bits(4, gqa_subject({.repeat = 2, .frozen = true}), layouts);
  CHECK(train_subject(4, {.tp = 4, .dp = 2, .stage = 3}, gqa_subject({.repeat = 2, .deferred = true})) ==
        train_subject(4, {}, gqa_subject({.repeat = 2})));
}

TEST_CASE("with shared heads, losses and norms are near those of one slice") {
  for (const int t : {1, 2, 4}) check_near(4, {.tp = t}, gqa_subject({.repeat = 2}), kLongRun);
  for (const int t : {2, 8}) check_near(8, {.tp = t}, gqa_subject({.kv_heads = 1, .repeat = 8}), kLongRun);
}

TEST_CASE("ranks have the slices that they need, by their numbers among the distinct ones") {
  with_threads("local", 4, [&](const Group& group) {
    GqaAttention attention({.repeat = 2});
    const std::vector<float> whole = attention.key->weight->detach().to_vector<float>();
    const auto cut = [&](int repeat) { return par::ColwiseParallel{.repeat = repeat}; };
    const par::TensorPlan plan = par::parallelize(
        attention, par::DeviceMesh(group, {{"tp", 4}}),
        {.plan = {{"query", cut(1)}, {"key", cut(2)}, {"value", cut(2)}, {"proj", par::RowwiseParallel{}}}});
    CHECK(plan.layers[1].path == "key");
    CHECK(plan.parameter_bytes < plan.whole_bytes / 2);
    int keys = 0;
    for (const auto& [name, parameter] : attention.named_parameters()) {
      if (!name.starts_with("key.weight")) continue;
      ++keys;
      const int d = group->rank() / 2;
      CHECK(name == fmt::format("key.weight[{}/2]", d));
      CHECK(parameter.slice()->index == d);
      CHECK(parameter.slice()->of == 2);
      CHECK(parameter->shape() == ls::Shape{4, 32});
      const std::vector<float> values = parameter->detach().to_vector<float>();
      for (std::size_t i = 0; i < values.size(); ++i)
        CHECK(values[i] == whole[static_cast<std::size_t>(parameter.slice()->part.at(static_cast<std::int64_t>(i)))]);
    }
    CHECK(keys == 1);
  });
}

TEST_CASE("errors of .repeat, on all ranks") {
  const auto cut = [](const Group& group, int slices, const GqaOptions& options, par::ColwiseParallel key) {
    GqaAttention attention(options);
    const par::ParallelPlan plan = {{"query", par::ColwiseParallel{}},
                                    {"key", key},
                                    {"value", par::ColwiseParallel{.repeat = key.repeat}},
                                    {"proj", par::RowwiseParallel{}}};
    par::parallelize(attention, par::DeviceMesh(group, {{"tp", group->size()}}),
                     {.tensor_slices = slices, .plan = plan});
    attention(ls::ones({2, 3, options.width()}));
  };
  with_threads("local", 2, [&](const Group& group) {
    CHECK_THROWS_WITH_AS(
        cut(group, 4, {}, {.repeat = 3}),
        "parallelize: key: .repeat is 3, but 4 slices cannot be divided into groups of 3 that share outputs; use "
        ".repeat = 1, 2 or 4",
        ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(
        cut(group, 4, {}, {.repeat = 2, .gather_output = true}),
        "parallelize: key: .repeat is 2, so slices share outputs, but .gather_output returns each output once; remove "
        "one of the two options",
        ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(
        cut(group, 4, {.kv_heads = 4}, {.multiple_of = 4, .repeat = 2}),
        "parallelize: key: 4 slices with .repeat = 2 take at most 2 heads, one for each group of slices that share "
        "outputs, but there are 4 heads of 4 outputs; use .repeat = 1",
        ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(cut(group, 4, {.kv_heads = 2}, {.multiple_of = 4, .repeat = 1}),
                         "parallelize: key: 8 outputs in 4 slices: 2 columns are not whole heads of 4; use 1 or 2 "
                         "slices, or .repeat = 2 if they are heads of keys and values",
                         ls::InvalidArgument);
    CHECK_THROWS_WITH_AS(
        cut(group, 8, {.kv_heads = 1, .dim = 6}, {.repeat = 2}),
        "parallelize: key: 6 outputs cannot be cut into 8 slices with .repeat = 2; use 2, 4, 6 or 12 slices",
        ls::InvalidArgument);
    // Without .multiple_of, the first forward finds it.
    CHECK_THROWS_WITH_AS(
        cut(group, 4, {.kv_heads = 4}, {.repeat = 2}),
        doctest::Contains("scaled_dot_product_attention: k has 4 heads on the 2 slices of this rank, "
                          "which share them with others (ColwiseParallel's .repeat); expected one head "
                          "on each: set .repeat to the slices divided by the heads of k"),
        ls::InvalidArgument);
  });
}
