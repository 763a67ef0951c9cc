// Modules between column-parallel and row-parallel layers: norms of heads have the same bits on any ranks, and a module
// that would be wrong there is an error. Ranks are threads.
#include "tests/parallel/model_parallel/tensor_gqa.h"

using namespace tensor_training;

namespace {

const std::vector<Layout> kRanks = {{.tp = 1}, {.tp = 2}, {.tp = 4}};

// A region with a module in it.
struct Region : nn::Module {
  template <class Inner, class... Args>
  explicit Region(std::type_identity<Inner>, const Args&... args)
      : nn::Module(), up(add<nn::Linear>("up", 16, 16)), inner(add<Inner>("inner", args...)),
        down(add<nn::Linear>("down", 16, 16)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    if (takes_whole) return inner(down(up(inner(x))));
    ls::Tensor y = up(x);
    if (heads > 0) y = y.reshape({y.size(0), y.size(1), -1, 16 / heads});
    return down(inner(y).reshape({x.size(0), x.size(1), -1}));
  }
  nn::Linear& up;
  nn::Module& inner;
  nn::Linear& down;
  int heads = 0;
  bool takes_whole = false;
};

struct Model2 : nn::Module {
  template <class Inner, class... Args>
  explicit Model2(std::type_identity<Inner> type, const Args&... args)
      : nn::Module(), region(add<Region>("mlp", type, args...)) {}
  ls::Tensor forward(const ls::Tensor& x) const override { return region(x); }
  Region& region;
};

template <class Inner, class... Args>
Model2 with(const Args&... args) {
  return Model2(std::type_identity<Inner>(), args...);
}

const par::ParallelPlan kPlan = {{"mlp.up", par::ColwiseParallel{}}, {"mlp.down", par::RowwiseParallel{}}};

void run_cut(const Group& group, Model2&& model, bool is_named, const ls::Shape& shape = {2, 6, 16}) {
  par::ParallelPlan plan = kPlan;
  if (is_named) plan.emplace_back("mlp.inner", par::SequenceParallel{});
  par::parallelize(model, par::DeviceMesh(group, {{"tp", group->size()}}), {.tensor_slices = 4, .plan = plan});
  model(ls::ones(shape));
}

// Changes a buffer while training.
struct Counter : nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override {
    if (is_training()) count.tensor().detach().add_(1);
    return x;
  }
  nn::Buffer& count = add_buffer("count", ls::zeros({1}));
};

struct Scale : nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override { return x * scale; }
  nn::Parameter& scale = add_parameter("scale", ls::ones({1}));
};

// Recomputes its norm by itself, or leaves that to the caller.
struct Recomputed : nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override {
    return recomputes ? ls::autograd::checkpoint([this](const ls::Tensor& t) { return norm(t); }, x) : norm(x);
  }
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{4});
  bool recomputes = true;
};

}  // namespace

TEST_CASE("norms of heads have the same bits on any number of ranks") {
  for (const HeadNorm norm : {HeadNorm::kBeforeTranspose, HeadNorm::kAfterTranspose}) {
    for (const GqaOptions& options :
         {GqaOptions{.kv_heads = 8, .norm = norm}, GqaOptions{.kv_heads = 4, .norm = norm, .rms = true},
          GqaOptions{.kv_heads = 2, .repeat = 2, .norm = norm},
          GqaOptions{.kv_heads = 8, .norm = norm, .recompute = true},
          GqaOptions{.kv_heads = 8, .norm = norm, .bf16 = true},
          GqaOptions{.kv_heads = 2, .repeat = 2, .norm = norm, .dropout = 0.2}})
      check_same_bits(4, gqa_subject(options), kRanks);
    check_near(4, {.tp = 2}, gqa_subject({.kv_heads = 4, .norm = norm}), kLongRun);
    check_near(4, {.tp = 4}, gqa_subject({.kv_heads = 2, .repeat = 2, .norm = norm, .rms = true}), kLongRun);
  }
  check_same_bits(8, gqa_subject({.kv_heads = 2, .repeat = 4, .norm = HeadNorm::kAfterTranspose}),
                  {{.tp = 1}, {.tp = 2}, {.tp = 8}});
}

TEST_CASE("norms of heads and data parallelism; deferred initialisation; recomputation") {
  GqaOptions options{.repeat = 2, .norm = HeadNorm::kBeforeTranspose};
  std::vector<Layout> layouts{{.tp = 1}, {.tp = 2, .dp = 2}, {.tp = 1, .dp = 2}};
  for (const int stage : {1, 2, 3}) layouts.push_back({.tp = 2, .dp = 2, .stage = stage});
  layouts.push_back({.tp = 4, .dp = 2, .stage = 3});
  check_same_bits(4, gqa_subject(options), layouts);
  const Outcome want = train_subject(4, {.tp = 2}, gqa_subject(options));
  options.deferred = true;
  CHECK(train_subject(4, {.tp = 2, .dp = 2, .stage = 3}, gqa_subject(options)) == want);
  options.deferred = false, options.recompute = true;
  CHECK(train_subject(4, {.tp = 4}, gqa_subject(options)) == want);
  options.recompute = false, options.recompute_norm = true;
  for (const int t : {1, 4}) CHECK(train_subject(4, {.tp = t}, gqa_subject(options)) == want);
}

TEST_CASE("a norm of whole columns, where a slice has one head") {
  const auto gradient = [](const Group& group, int heads) {
    Model2 model = with<nn::LayerNorm>(ls::Shape{4});
    model.region.heads = heads;
    for (const auto& [name, parameter] : model.named_parameters()) {
      const ls::Tensor& t = parameter.master();
      parameter.set_master(ls::sin(ls::arange(t.numel()).to(ls::kFloat32)).reshape(t.shape()).requires_grad_());
    }
    const int t = group ? group->size() : 1;
    par::ParallelPlan plan = kPlan;
    plan.emplace_back("mlp.inner", par::SequenceParallel{});
    par::parallelize(model, par::DeviceMesh(group, {{"tp", t}}), {.tensor_slices = 4, .plan = plan});
    const ls::Tensor x = ls::cos(ls::arange(2 * 6 * 16).to(ls::kFloat32)).reshape({2, 6, 16});
    (model(x) * x).sum().backward();
    return dynamic_cast<nn::LayerNorm&>(model.region.inner).weight->grad().to_vector<float>();
  };
  const std::vector<float> want = gradient(nullptr, 4);
  CHECK(gradient(nullptr, 0) == want);
  for (const int t : {2, 4}) {
    with_threads("local", t, [&](const Group& group) {
      CHECK(gradient(group, 0) == want);
      CHECK(gradient(group, 4) == want);
    });
  }
}

TEST_CASE("errors of modules in an open region, on all ranks") {
  const std::string between = " between up (ColwiseParallel) and down (RowwiseParallel)";
  for (const int t : {1, 2, 4}) {
    with_threads("local", t, [&](const Group& group) {
      const auto check = [&](const std::string& want, const auto& run) {
        try {
          run();
          FAIL_CHECK("no error");
        } catch (const ls::InvalidArgument& error) {
          const std::string text = error.what();
          CHECK_MESSAGE(text.substr(text.find("parallelize: ")) == "parallelize: mlp.inner " + want, text);
        }
      };
      const std::string parameters = "has parameters and runs" + between +
                                     "; each rank would have a part of its gradient: name it SequenceParallel";
      check(parameters, [&] { run_cut(group, with<nn::LayerNorm>(ls::Shape{16 / t}), false); });
      check(parameters, [&] { run_cut(group, with<Scale>(), false); });
      const std::string buffers = "has buffers that training changes and runs" + between +
                                  "; each rank would change them by its columns alone: run it before or after these "
                                  "layers, or use a module without such buffers";
      check(buffers, [&] { run_cut(group, with<nn::BatchNorm1d>(6), false); });
      check(buffers, [&] { run_cut(group, with<nn::BatchNorm1d>(6), true); });
      check(buffers, [&] { run_cut(group, with<Counter>(), false); });
      // The norm of all heads together has statistics over all ranks.
      check("runs" + between +
                ", once for each slice: x of a slice is (2, 6, 4) f32 cpu, and the norm has the shape (16), whose "
                "statistics would need all slices; expected a norm of each head, (4)",
            [&] { run_cut(group, with<nn::LayerNorm>(ls::Shape{16}), true); });
    });
  }
}

TEST_CASE("a dimension that is as long as the heads is no head") {
  with_threads("local", 2, [](const Group& group) {
    Model2 model = with<nn::LayerNorm>(ls::Shape{2});
    model.region.heads = 8;
    run_cut(group, std::move(model), true, {2, 4, 16});  // 4 positions, and 4 heads on each rank
  });
}

namespace {

// A norm of heads behind the time, in a copy.
struct Transposed : nn::Module {
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor heads = up(x).reshape({x.size(0), x.size(1), -1, 2});
    if (frees_columns) heads = heads * 2;  // the next copy could get their memory
    ls::Tensor y;
    if (is_fixed)
      y = norm((2 * heads).flatten(0, 1)).reshape(heads.shape());
    else
      y = norm(heads.transpose(1, 2).contiguous()).transpose(1, 2);
    return down(y.flatten(2));
  }
  nn::Linear &up = add<nn::Linear>("up", 16, 16), &down = add<nn::Linear>("down", 16, 16);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{2});
  bool is_fixed = false, frees_columns = false;
};

}  // namespace

TEST_CASE("heads that cannot be told from the time are an error, and never the time") {
  const par::ParallelPlan plan = {
      {"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}, {"norm", par::SequenceParallel{}}};
  for (const int t : {1, 2, 4}) {
    with_threads("local", t, [&](const Group& group) {
      Transposed model;
      par::parallelize(model, par::DeviceMesh(group, {{"tp", t}}), {.tensor_slices = 4, .plan = plan});
      const ls::Tensor x = ls::ones({2, 8 / t, 16}), other = ls::ones({2, 3, 16});  // as many positions as heads
      CHECK(model(other).shape() == other.shape());
      if (t == 4)
        CHECK(model(x).shape() == x.shape());  // one slice
      else
        CHECK_THROWS_WITH_AS(model(x),
                             doctest::Contains("in a copy of the columns no other dimension may be as long as "
                                               "the heads: use reshape({batch * time, heads, dim})"),
                             ls::InvalidArgument);
      model.frees_columns = true;
      for (int call = 0; call < 6 && t < 4; ++call) {
        CAPTURE(call);
        CHECK_THROWS_WITH_AS(model(x), doctest::Contains("in a copy of the columns"), ls::InvalidArgument);
      }
      model.frees_columns = false;
      model.is_fixed = true;
      CHECK(model(x).shape() == x.shape());
    });
  }
}

TEST_CASE("a module with cut layers in an open region is an error") {
  struct Inner : nn::Module {
    nn::MultiheadAttention& attention = add<nn::MultiheadAttention>("attention", 16, 4);
    ls::Tensor forward(const ls::Tensor& x) const override { return attention(x); }
  };
  Model2 model = with<Inner>();
  par::ParallelPlan plan = kPlan;
  plan.emplace_back("mlp.inner.attention", par::AttentionParallel{});
  par::parallelize(model, par::DeviceMesh(nullptr, {{"tp", 1}}), {.tensor_slices = 4, .plan = plan});
  CHECK_THROWS_WITH_AS(model(ls::ones({2, 6, 16})),
                       doctest::Contains("parallelize: mlp.inner.attention has layers that are cut and runs between up "
                                         "(ColwiseParallel) and down (RowwiseParallel), where activations are cut "
                                         "already; run it before or after these layers"),
                       ls::InvalidArgument);
}

TEST_CASE("modules with parameters before and after a region, and without any in it") {
  with_threads("local", 2, [&](const Group& group) {
    run_cut(group, with<nn::GELU>(), false);
    Model2 after = with<nn::LayerNorm>(ls::Shape{16});
    after.region.takes_whole = true;
    run_cut(group, std::move(after), false);
    Model2 named = with<nn::LayerNorm>(ls::Shape{16});
    named.region.takes_whole = true;
    run_cut(group, std::move(named), true);  // outside of the region SequenceParallel changes nothing
  });
}

TEST_CASE("checkpoint inside a SequenceParallel module, which runs once for each slice, is an error on all ranks") {
  for (const int t : {1, 2, 4}) {
    with_threads("local", t, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"tp", t}});
      par::ParallelPlan plan = kPlan;
      plan.emplace_back("mlp.inner", par::SequenceParallel{});
      Model2 model = with<Recomputed>();
      model.region.heads = 4;
      par::parallelize(model, mesh, {.tensor_slices = 4, .plan = plan});
      const ls::Tensor x = ls::ones({2, 6, 16}).requires_grad_();
      CHECK_THROWS_WITH_AS(model(x).sum().backward(),
                           "mlp.inner: checkpoint: runs in a SequenceParallel module with parameters, which runs once "
                           "for each slice of this rank; call checkpoint around the module, as checkpoint(module, x), "
                           "or give a module around it the style Recompute",
                           ls::InvalidArgument);
      auto& inner = dynamic_cast<Recomputed&>(model.region.inner);
      {
        const ls::NoGradGuard no_grad;
        CHECK(model(x).shape() == x.shape());
      }
      inner.recomputes = false;
      model(x).sum().backward();
      CHECK(inner.norm.weight->grad().defined());
    });
  }
}
