// Split backwards: part I computes the gradient of the input, part W later those of the parameters. Both together have
// the bits of a joint backward. tests/support/gradcheck_table.h compares every operation.
#include <random>
#include <utility>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/tensor/random/random.h"
#include "tests/support/split_check.h"

using ls::autograd::SplitBackward, split_check::Tensors;

namespace {

const ls::TensorOptions kLeaf = {.requires_grad = true};

// --- graphs ---------------------------------------------------------------------------------------------------------

// Two results, of which a graph may use one.
struct SumAndProduct : ls::autograd::Function<SumAndProduct> {
  static Tensors forward(ls::autograd::Context& context, const ls::Tensor& a, const ls::Tensor& b) {
    context.save_for_backward({a, b});
    return {a + b, a * b};
  }
  static ls::autograd::Gradients backward(ls::autograd::Context& context, const Tensors& grads) {
    ls::Tensor by_a = grads[0], by_b = grads[0];
    if (const ls::Tensor& g = grads[1]; g.defined()) {
      by_a = by_a.defined() ? by_a + g * context.saved(1) : g * context.saved(1);
      by_b = by_b.defined() ? by_b + g * context.saved(0) : g * context.saved(0);
    }
    return {by_a, by_b};
  }
};

// Grows a random graph of (4, 4) values from leaves, of which leaf 0 is the input. The result depends on all of them.
class RandomGraph {
 public:
  explicit RandomGraph(unsigned seed) : generator_(seed) {}

  ls::Tensor operator()(const Tensors& leaves) {
    values_ = leaves;
    for (int i = 0; i < 30; ++i) values_.push_back(next() * 0.5);
    ls::Tensor sum = values_.back();
    for (const ls::Tensor& value : values_) sum = sum + value;
    return sum;
  }

 private:
  std::size_t draw(std::size_t count) { return generator_() % count; }
  const ls::Tensor& any() { return values_[draw(values_.size())]; }
  ls::Tensor next() {
    const ls::Tensor a = any(), b = any(), c = any();
    switch (draw(16)) {
      case 0:
        return a + b;
      case 1:
        return a * b;
      case 2:
        return ls::matmul(a, b);
      case 3:
        return ls::linear(a, b, c[0]);
      case 4:
        return ls::layer_norm(a, 4, b[1], c[2]);
      case 5:
        return ls::tanh(a);
      case 6:
        return ls::softmax(a, -1);
      case 7:
        return ls::cat({a.narrow(0, 0, 2), b.narrow(0, 1, 2)});
      case 8:
        return ls::where(a.detach() > 0, b, c);
      case 9:
        return ls::scaled_dot_product_attention(a, b, c, {.dropout_p = 0.2});
      case 10:
        return ls::matmul(a.to(ls::kBFloat16), b.to(ls::kBFloat16)).to(ls::kFloat32);
      case 11:
        return ls::dropout(a.t(), 0.3) - b[3];
      case 12:
        return ls::index_select(a, 0, ls::tensor({3, 1, 1, 0})) / (ls::exp(b) + 1);
      case 13:
        return SumAndProduct::apply(a, b)[1];
      case 14: {
        const Tensors both = SumAndProduct::apply(a, b);
        return both[0] - both[1];
      }
      default:
        return ls::rms_norm(a.unsqueeze(0).expand({2, 4, 4}), 4, b[0])[1];
    }
  }

  std::mt19937 generator_;
  Tensors values_;
};

}  // namespace

TEST_CASE("a split backward of random graphs has the bits of a joint one") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Tensors leaves;
    for (std::uint32_t i = 0; i < 5; ++i) leaves.push_back(numbers({4, 4}, kLeaf, i + 1));
    if (seed % 3 == 0) leaves[2].requires_grad_(false);
    split_check::check([seed](const Tensors& own) { return RandomGraph(seed)(own); }, leaves);
  }
}

TEST_CASE("losses whose target requires grad, too, have the bits of a joint backward") {
  namespace nn = ls::nn;
  for (const nn::Reduction reduction : {nn::Reduction::kMean, nn::Reduction::kSum, nn::Reduction::kNone}) {
    const auto check = [](const std::function<ls::Tensor(const Tensors&)>& loss) {
      split_check::check_operands(
          loss, {numbers_between(0.1, 0.7, {5, 7}, kLeaf), numbers_between(0.1, 0.7, {5, 7}, kLeaf, 2)});
    };
    check([=](const Tensors& in) { return nn::mse_loss(in[0], in[1], {.reduction = reduction}); });
    check([=](const Tensors& in) { return nn::l1_loss(in[0], in[1], {.reduction = reduction}); });
    check([=](const Tensors& in) { return nn::binary_cross_entropy(in[0], in[1], {.reduction = reduction}); });
    check([=](const Tensors& in) {
      return nn::binary_cross_entropy_with_logits(in[0], in[1], {.reduction = reduction});
    });
    check([=](const Tensors& in) { return nn::smooth_l1_loss(in[0], in[1], {.reduction = reduction}); });
    check([=](const Tensors& in) { return nn::cross_entropy(in[0], in[1], {.reduction = reduction}); });
  }
}

// --- modules --------------------------------------------------------------------------------------------------------

namespace {

// A module's gradients, and that of its input, if it has one.
template <class Model>
void check_model(
    const ls::Tensor& input, const std::function<void(Model&)>& prepare = [](Model&) {}) {
  Tensors gradients[2];
  for (const bool is_split : {false, true}) {
    ls::manual_seed(4);
    Model model;
    prepare(model);
    const ls::Tensor x = input.is_floating_point() ? input.detach().requires_grad_() : input;
    const ls::Tensor y = model(x), upstream = numbers(y.shape(), {.dtype = y.dtype()}, 7);
    Tensors& out = gradients[is_split ? 1 : 0];
    if (is_split) {
      SplitBackward backward(y, upstream, x.requires_grad() ? x : ls::Tensor());
      backward.run();
      out = {backward.take_input_gradient()};
    } else {
      y.backward(upstream);
      out = {x.grad()};
    }
    for (const ls::nn::Parameter& parameter : model.parameters()) out.push_back(parameter->grad());
  }
  split_check::check_same(gradients[1], gradients[0]);
}

struct Block : ls::nn::Module {
  ls::nn::LayerNorm& norm1 = add<ls::nn::LayerNorm>("norm1", 16);
  ls::nn::MultiheadAttention& attention =
      add<ls::nn::MultiheadAttention>("attention", 16, 4, ls::nn::MultiheadAttentionOptions{.dropout = 0.1});
  ls::nn::LayerNorm& norm2 = add<ls::nn::LayerNorm>("norm2", 16);
  ls::nn::Linear& up = add<ls::nn::Linear>("up", 16, 32);
  ls::nn::Linear& down = add<ls::nn::Linear>("down", 32, 16);
  ls::nn::Dropout& dropout = add<ls::nn::Dropout>("dropout", 0.2);

  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = x + dropout(attention(norm1(x)));
    return y + dropout(down(ls::gelu(up(norm2(y)))));
  }
};

// A stage of two blocks with a weight that is used twice, and once as an embedding that does not depend on the input.
struct TiedStage : ls::nn::Module {
  ls::nn::Embedding& embedding = add<ls::nn::Embedding>("embedding", 8, 16);
  Block& first = add<Block>("first");
  Block& second = add<Block>("second");

  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor tokens = embedding(ls::tensor({1, 5, 5, 0, 2}));
    const ls::Tensor y = second(first(x + tokens));
    return ls::linear(y, embedding.weight) + ls::linear(ls::tanh(y), embedding.weight);
  }
};

// From indices: the first stage, whose input has no gradient.
struct FirstStage : ls::nn::Module {
  ls::nn::Embedding& embedding = add<ls::nn::Embedding>("embedding", 8, 16);
  Block& block = add<Block>("block");
  ls::Tensor forward(const ls::Tensor& index) const override { return block(embedding(index)); }
};

struct ConvStage : ls::nn::Module {
  ls::nn::Conv2d& conv = add("conv", ls::nn::Conv2d(3, 4, 3, {.padding = 1}));
  ls::nn::BatchNorm2d& norm = add<ls::nn::BatchNorm2d>("norm", 4);
  ls::nn::Conv2d& last = add("last", ls::nn::Conv2d(4, 2, 2));

  ls::Tensor forward(const ls::Tensor& x) const override { return last(ls::max_pool2d(ls::relu(norm(conv(x))), 2)); }
};

}  // namespace

TEST_CASE("a split backward of transformer blocks with a tied weight has the bits of a joint one") {
  check_model<TiedStage>(numbers({3, 5, 16}));
}

TEST_CASE("a split backward of convolutions and batch normalisation has the bits of a joint one") {
  check_model<ConvStage>(numbers({2, 3, 6, 6}));
}

TEST_CASE("a split backward of frozen parameters computes none of their gradients") {
  check_model<TiedStage>(numbers({3, 5, 16}), [](TiedStage& model) {
    model.first.up.weight->requires_grad_(false);
    for (const ls::nn::Parameter& each : model.second.attention.parameters()) each->requires_grad_(false);
    model.second.norm2.bias->requires_grad_(false);
  });
  check_model<Block>(numbers({3, 5, 16}), [](Block& model) {
    for (const ls::nn::Parameter& each : model.parameters()) each->requires_grad_(false);
  });
}

TEST_CASE("a split backward under autocast to bf16 has the bits of a joint one") {
  const ls::AutocastGuard autocast(ls::kBFloat16);
  check_model<TiedStage>(numbers({3, 5, 16}));
  check_model<ConvStage>(numbers({2, 3, 6, 6}));
}

TEST_CASE("without an input part W is the whole backward") {
  check_model<FirstStage>(ls::tensor({{1, 2, 7}, {0, 7, 7}}));
}

TEST_CASE("a root without the input, a root that is the input, and a root that is a parameter") {
  const ls::Tensor x = numbers({3}, kLeaf), w = numbers({3}, kLeaf, 2), ones = ls::ones({3});
  SplitBackward unused(w * w, ones, x);
  CHECK(!w.grad().defined());
  unused.run();
  CHECK(!unused.take_input_gradient().defined());
  CHECK(same_bits(w.grad(), (w * 2).detach()));

  w.set_grad({});
  SplitBackward parameter(w, ones, x);
  CHECK(!w.grad().defined());
  parameter.run();
  CHECK(same_bits(w.grad(), ones));

  SplitBackward input(x, ones, x);
  CHECK(same_bits(input.take_input_gradient(), ones));
  CHECK(input.gradient_bytes() == 0);
  input.run();
  CHECK(!x.grad().defined());
}

// --- micro-batches --------------------------------------------------------------------------------------------------

TEST_CASE("parts of several micro-batches, in the order of a schedule, accumulate in bucket views with the same bits") {
  for (const bool separate : {false, true}) {
    Tensors gradients[2];
    for (const bool is_split : {false, true}) {
      ls::manual_seed(4);
      const TiedStage model;
      Tensors views;
      for (const ls::nn::Parameter& parameter : model.parameters()) {
        views.push_back(ls::full(parameter->shape(), -7.0));
        ls::autograd::set_gradient_view(parameter, views.back());
        ls::autograd::set_separate_contributions(parameter, separate);
      }
      Tensors inputs, outputs;
      for (int m = 0; m < 4; ++m) {
        const ls::random::MicroBatchGuard guard(m);
        inputs.push_back(numbers({3, 5, 16}, kLeaf, static_cast<std::uint32_t>(m)));
        outputs.push_back(model(inputs.back()));
      }
      std::vector<SplitBackward> parts;
      const auto begin = [&](std::size_t m) {
        parts.emplace_back(std::exchange(outputs[m], {}), numbers({3, 5, 8}, {}, 9), inputs[m]);
        gradients[1].push_back(parts[m].take_input_gradient());
      };
      if (is_split) {
        begin(0), begin(1), begin(2);
        parts[0].run(), parts[1].run();
        begin(3);
        parts[2].run(), parts[3].run();
      } else {
        for (const ls::Tensor& y : outputs) y.backward(numbers({3, 5, 8}, {}, 9));
        gradients[0] = split_check::gradients_of(inputs);
      }
      Tensors& all = gradients[is_split ? 1 : 0];
      for (std::size_t p = 0; p < views.size(); ++p) {
        all.push_back(views[p].clone());
        CHECK(model.parameters()[p]->grad().raw_data() == views[p].raw_data());
        CHECK(ls::autograd::gradient_copies(model.parameters()[p]) == 0);
      }
    }
    split_check::check_same(gradients[1], gradients[0]);
  }
}

TEST_CASE("part W runs a node under the micro-batch that recorded it") {
  struct Ask : ls::autograd::Function<Ask> {
    static ls::Tensor forward(ls::autograd::Context&, const ls::Tensor& x, const ls::Tensor& w) { return x * w; }
    static ls::autograd::Gradients backward(ls::autograd::Context&, const ls::Tensor& grad) {
      return {grad * ls::random::current_micro_batch(), grad * ls::random::current_micro_batch()};
    }
  };
  const ls::Tensor x = ls::ones({1}, kLeaf), w = ls::ones({1}, kLeaf);
  ls::Tensor y;
  {
    const ls::random::MicroBatchGuard guard(6);
    y = Ask::apply(x, w);
  }
  SplitBackward backward(y, {}, x);
  backward.run();
  CHECK(backward.take_input_gradient().item<float>() == 6);
  CHECK(w.grad().item<float>() == 6);
}
