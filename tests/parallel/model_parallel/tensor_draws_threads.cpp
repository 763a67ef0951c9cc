// Random numbers that a model draws between layers that are cut, and with sequence parallelism outside of them: those of
// the whole tensor, on any number of ranks. Ranks are threads.
#include "tests/parallel/model_parallel/tensor_subject.h"

using namespace tensor_training;

namespace {

enum class Noise { kUniform, kNormal, kInteger, kBernoulli, kProbabilities, kNormalLike };

ls::Tensor noise(Noise kind, const ls::Tensor& like) {
  switch (kind) {
    case Noise::kUniform:
      return ls::rand(like.shape());
    case Noise::kNormal:
      return ls::randn_like(like);
    case Noise::kInteger:
      return ls::randint(-3, 4, like.shape()).to(ls::kFloat32);
    case Noise::kBernoulli:
      return ls::bernoulli(like, 0.7);
    case Noise::kProbabilities:
      return ls::bernoulli(ls::sigmoid(like.detach()));
    default:
      return ls::normal(like.detach(), 0.1);
  }
}

constexpr std::int64_t kWide = 24;

// The columns of `up` are three parts.
struct NoisyMlp : nn::Module {
  explicit NoisyMlp(Noise kind) : kind(kind) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = up(x), z = y * noise(kind, y);
    const std::vector<ls::Tensor> parts = ls::chunk(z, 3, -1);
    return down(parts[0] * noise(kind, parts[0]) + parts[1] * parts[2]);
  }
  Noise kind;
  nn::Linear &up = add<nn::Linear>("up", 16, 3 * kWide), &down = add<nn::Linear>("down", kWide, 16);
};

struct NoisyModel : nn::Module {
  explicit NoisyModel(Noise kind) : kind(kind), mlp(add<NoisyMlp>("mlp", kind)) {}
  ls::Tensor forward(const ls::Tensor& ids) const override {
    const ls::Tensor x = tokens(ids), y = mlp(norm(x + 0.1 * noise(kind, x)));
    return head(x + y * noise(kind, y));
  }
  Noise kind;
  nn::Embedding& tokens = add<nn::Embedding>("tokens", kVocabulary, 16);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{16});
  NoisyMlp& mlp;
  nn::Linear& head = add<nn::Linear>("head", 16, kVocabulary);
};

Subject noisy(Noise kind, bool sequence) {
  par::ParallelPlan plan = {{"mlp.up", par::ColwiseParallel{.parts = 3}}, {"mlp.down", par::RowwiseParallel{}}};
  if (sequence) {
    for (const char* name : {"tokens", "norm", "head"}) plan.emplace_back(name, par::SequenceParallel{});
  }
  return {.make = [kind] { return std::make_unique<NoisyModel>(kind); }, .plan = plan, .sequence = sequence};
}

}  // namespace

TEST_CASE("numbers drawn between layers that are cut are those of the whole tensor, on any number of ranks") {
  for (const Noise kind : {Noise::kUniform, Noise::kNormal, Noise::kInteger, Noise::kBernoulli, Noise::kProbabilities,
                           Noise::kNormalLike}) {
    CAPTURE(static_cast<int>(kind));
    for (const bool sequence : {false, true})
      check_same_bits(4, noisy(kind, sequence), {{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 2, .dp = 2}});
    check_near(4, {.tp = 2}, noisy(kind, false));  // slices do not change the numbers
  }
}

namespace {

struct Draws : nn::Module {
  nn::Linear &up = add<nn::Linear>("up", 8, 24), &down = add<nn::Linear>("down", 24, 8);
  ls::Shape shape;
  ls::Tensor forward(const ls::Tensor& x) const override {
    (void)ls::rand({2, 3});
    const ls::Tensor y = up(x);
    (void)ls::randn(shape);
    return down(y);
  }
};

struct DrawsInSlice : nn::Module {
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{6});
  std::string op = "rand_like";
  ls::Tensor forward(const ls::Tensor& x) const override {
    if (op == "rand_like") (void)ls::rand_like(x);
    if (op == "randperm") (void)ls::randperm(4);
    if (op == "multinomial") (void)ls::multinomial(ls::ones({4}), 2);
    if (op == "scaled_dot_product_attention") return ls::scaled_dot_product_attention(x, x, x, {.dropout_p = 0.5});
    if (op == "dropout") return ls::dropout(norm(x), 0.5, true);
    return norm(x);
  }
};
struct DrawsInNorm : nn::Module {
  nn::Linear &up = add<nn::Linear>("up", 8, 24), &down = add<nn::Linear>("down", 24, 8);
  DrawsInSlice& inner = add<DrawsInSlice>("inner");
  ls::Tensor forward(const ls::Tensor& x) const override {
    return down(inner(up(x).reshape({x.size(0), x.size(1), -1, 6})).flatten(2));
  }
};

const par::ParallelPlan kDraws = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}};

}  // namespace

TEST_CASE("numbers of another shape than the columns of a rank, or drawn once for each slice, are an error") {
  for (const int t : {1, 2}) {
    with_threads("local", t, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"tp", t}});
      Draws model;
      model.shape = {4, 7};
      par::parallelize(model, mesh, {.tensor_slices = 4, .plan = kDraws});
      const std::string want = fmt::format(
          "randn: shape (4, 7), after up, whose outputs tensor parallelism has cut; expected the {} columns "
          "of this rank in the last dimension: draw whole tensors before the layer or after the next "
          "RowwiseParallel one",
          24 / t);
      CHECK_THROWS_WITH_AS(model(ls::ones({4, 8})), want.c_str(), ls::InvalidArgument);
      DrawsInNorm in_norm;
      par::ParallelPlan plan = kDraws;
      plan.emplace_back("inner", par::SequenceParallel{});
      par::parallelize(in_norm, mesh, {.tensor_slices = 4, .plan = plan});
      for (const std::string op : {"rand_like", "randperm", "multinomial", "scaled_dot_product_attention", "dropout"}) {
        in_norm.inner.op = op;
        const std::string of_op = fmt::format(
            "inner: {}: runs in a SequenceParallel module with parameters, which runs once for each slice of this "
            "rank, so that the numbers would depend on the ranks; {}",
            op,
            op == "dropout" ? "give the style to the layers inside of it, and none to the Dropout"
                            : "draw them outside of the module");
        CHECK_THROWS_WITH_AS(in_norm(ls::ones({2, 3, 8})), of_op.c_str(), ls::InvalidArgument);
      }
    });
  }
}
