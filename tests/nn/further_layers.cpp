// The layers of more.safetensors: values and gradients of PyTorch, derivatives, masks, and errors.
#include <memory>
#include <string>

#include "support.h"

namespace {

const ls::StateDict& dict() {
  static const ls::StateDict values = golden("more");
  return values;
}

// Compares y and all gradients in f32 and f64.
void check(const std::string& name, nn::Module&& module) {
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    load_case(module, dict(), prefix, tag);
    check_step(module, dict(), prefix, tag == "f32" ? Tolerance{2e-5, 2e-5} : Tolerance{1e-12, 1e-12});
  }
}

void check_gradients(nn::Module&& module, const ls::Shape& shape) {
  module.to(ls::kFloat64);
  std::vector<ls::Tensor> inputs = {numbers(shape, {.dtype = ls::kFloat64, .requires_grad = true})};
  for (const nn::Parameter& p : module.parameters()) inputs.push_back(p.master());
  const auto f = [&](const std::vector<ls::Tensor>& in) { return ls::sum(ls::tanh(module(in[0]))); };
  CHECK(ls::autograd::gradcheck(f, inputs, {.second_order = true}));
}

// A decoder of one input, whose second part along the time is the memory, as in golden_more.py.
template <class Decoder>
struct OneInput : nn::Module {
  Decoder& decoder;
  nn::MultiheadAttentionMasks masks, memory_masks;

  template <class... Arguments>
  explicit OneInput(Arguments&&... arguments)
      : decoder(add<Decoder>("decoder", std::forward<Arguments>(arguments)...)) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor target = x.narrow(1, 0, 3), memory = x.narrow(1, 3, x.size(1) - 3);
    if (!masks.is_causal) return decoder({target, memory});
    return decoder.forward(target, memory, masks, memory_masks);
  }
};
using OneLayer = OneInput<nn::TransformerDecoderLayer>;
using Layers = OneInput<nn::TransformerDecoder>;

std::string message(const nn::Module& module, const ls::Shape& shape) {
  return error_of([&] { module(ls::ones(shape)); });
}

const ls::Tensor& bag_index() {
  static const ls::Tensor index = ls::tensor({1, 3, 3, 0, 5, 2, 2, 1, 4});
  return index;
}

// Compares with embedding_bag of PyTorch, in f32 and f64.
void check_bag(const std::string& name, nn::BagMode mode, const std::string& kind, bool padding) {
  for (const std::string& tag : float_tags()) {
    const std::string key = "embedding_bag_" + name + (padding ? "_padding_" : "_") + kind + "." + tag + "/";
    INFO(key);
    nn::EmbeddingBag bag(6, 3, {.mode = mode, .padding_idx = padding ? std::optional<std::int64_t>(-4) : std::nullopt});
    load_case(bag, dict(), key, tag);
    ls::Tensor weights;
    if (kind == "weighted") weights = dict().at(key + "per_sample_weights").clone().requires_grad_();
    const ls::Tensor y =
        kind == "rows" ? bag(bag_index().view({3, 3})) : bag.forward(bag_index(), ls::tensor({0, 3, 3, 4, 8}), weights);
    check_close(y, dict().at(key + "y"), "y");
    y.backward(dict().at(key + "grad_y"));
    check_close(bag.weight->grad(), dict().at(key + "grad_weight"), "weight");
    if (weights.defined()) check_close(weights.grad(), dict().at(key + "grad_per_sample_weights"), "weights");
  }
}

}  // namespace

TEST_CASE("ConvTranspose1d and Conv3d give PyTorch's values and gradients") {
  check("conv_transpose1d", nn::ConvTranspose1d(3, 4, 3));
  check("conv_transpose1d_options",
        nn::ConvTranspose1d(
            4, 6, 3, {.stride = 2, .padding = 1, .output_padding = 1, .groups = 2, .bias = false, .dilation = 2}));
  check("conv3d", nn::Conv3d(4, 3, 3));
  check("conv3d_options",
        nn::Conv3d(4, 6, {2, 3, 2},
                   {.stride = {2, 1, 3}, .padding = {2, 1, 0}, .dilation = {3, 1, 2}, .groups = 2, .bias = false}));
}

TEST_CASE("ConvTranspose1d and Conv3d have the right derivatives and take a single sample") {
  check_gradients(nn::ConvTranspose1d(2, 4, 3, {.stride = 2, .padding = 1, .groups = 2}), {2, 2, 3});
  check_gradients(nn::Conv3d(2, 2, {2, 1, 2}, {.stride = {1, 2, 1}, .padding = {1, 0, 1}, .groups = 2}),
                  {1, 2, 2, 3, 2});
  const nn::ConvTranspose1d transposed(2, 3, 2);
  const ls::Tensor sequence = numbers({2, 5}), volume = numbers({2, 3, 4, 5});
  CHECK(same_bits(transposed(sequence), transposed(sequence.unsqueeze(0)).squeeze(0)));
  const nn::Conv3d conv(2, 3, 2);
  CHECK(same_bits(conv(volume), conv(volume.unsqueeze(0)).squeeze(0)));
}

TEST_CASE("ConvTranspose1d and Conv3d have PyTorch's initial values") {
  ls::manual_seed(3);
  const nn::ConvTranspose1d transposed(6, 8, 5, {.groups = 2});
  CHECK(transposed.weight->shape() == ls::Shape{6, 4, 5});
  CHECK(ls::max(ls::abs(transposed.weight)).item<double>() <= 1 / std::sqrt(20.0));
  CHECK(ls::max(ls::abs(transposed.weight)).item<double>() > 0.9 / std::sqrt(20.0));
  const nn::Conv3d conv(6, 8, {2, 3, 1}, {.groups = 2});
  CHECK(conv.weight->shape() == ls::Shape{8, 3, 2, 3, 1});
  CHECK(ls::max(ls::abs(conv.weight)).item<double>() <= 1 / std::sqrt(18.0));
  CHECK(ls::max(ls::abs(conv.weight)).item<double>() > 0.9 / std::sqrt(18.0));
}

TEST_CASE("ConvTranspose1d and Conv3d refuse what does not fit") {
  CHECK(contains(error_of([] { nn::ConvTranspose1d(3, 4, 3, {.groups = 2}); }),
                 "ConvTranspose1d: channels 3 and 4, kernel 3, 2 groups; expected positive numbers, and groups that"));
  CHECK(
      contains(message(nn::ConvTranspose1d(3, 4, 3), {3}), "ConvTranspose1d: x is (3) f32 cpu, expected (n, channels"));
  CHECK(contains(error_of([] { nn::Conv3d(3, 4, 2, {.groups = 2}); }), "Conv3d: in 3, out 4, 2 groups"));
  CHECK(contains(error_of([] { nn::Conv3d(2, 2, {0, 1, 1}); }), "is 0, 1, 1 and 0, the kernel's plane 1 x 1"));
  CHECK(contains(message(nn::Conv3d(3, 4, 2), {1, 2, 3, 3, 3}),
                 "Conv3d: x is (1, 2, 3, 3, 3) f32 cpu, expected (n, 3, depth, height, width), or without n"));
  CHECK(contains(message(nn::Conv3d(3, 4, {3, 1, 1}), {1, 3, 2, 3, 3}),
                 "of depth 2 with the padding; the kernel covers 3"));
}

TEST_CASE("EmbeddingBag gives PyTorch's sums, means and maxima, with and without padding") {
  const std::pair<std::string, nn::BagMode> modes[] = {
      {"sum", nn::BagMode::kSum}, {"mean", nn::BagMode::kMean}, {"max", nn::BagMode::kMax}};
  for (const auto& [name, mode] : modes) {
    for (const bool padding : {false, true}) {
      check_bag(name, mode, "offsets", padding);
      check_bag(name, mode, "rows", padding);
      if (mode == nn::BagMode::kSum) check_bag(name, mode, "weighted", padding);
    }
  }
}

TEST_CASE("EmbeddingBag takes several inputs, a last offset, and i32 indices") {
  nn::EmbeddingBag bag(6, 3, {.mode = nn::BagMode::kSum, .padding_idx = 2}),
      last(6, 3, {.mode = nn::BagMode::kSum, .padding_idx = 2, .include_last_offset = true});
  last.weight.master().detach().copy_(bag.weight.master().detach());
  CHECK(ls::equal(bag.weight->detach()[2], ls::zeros({3})));
  const ls::Tensor offsets = ls::tensor({0, 4}), y = bag.forward(bag_index(), offsets);
  CHECK(same_bits(bag({bag_index(), offsets}), y));
  CHECK(same_bits(bag.forward(bag_index().to(ls::kInt32), offsets.to(ls::kInt32)), y));
  CHECK(same_bits(last.forward(bag_index(), ls::tensor({0, 4, 9})), y));
  CHECK(bag.forward(ls::zeros({0}, {.dtype = ls::kInt64}), ls::zeros({0}, {.dtype = ls::kInt64})).shape() ==
        ls::Shape{0, 3});
}

TEST_CASE("EmbeddingBag refuses what does not fit") {
  const nn::EmbeddingBag bag(6, 3), sum(6, 3, {.mode = nn::BagMode::kSum});
  const auto with_offsets = [&](const ls::Tensor& offsets) {
    return error_of([&] { bag.forward(bag_index(), offsets); });
  };
  CHECK(
      contains(with_offsets(ls::tensor({1, 2})), "have to begin at 0, not to decrease, and end within the 9 indices"));
  CHECK(contains(with_offsets(ls::tensor({0, 3, 2})), "not to decrease"));
  CHECK(contains(with_offsets(ls::tensor({0, 10})), "they are (2) i64 cpu, the last 10"));
  CHECK(contains(with_offsets(ls::tensor({0.0})), "the offsets are (1) f32 cpu, expected (bags) of i64 or i32"));
  CHECK(contains(error_of([&] { bag(bag_index()); }), "expected (bags, length), or (count) together with offsets"));
  CHECK(
      contains(error_of([&] { bag.forward(bag_index(), ls::tensor({0}), ls::ones({9})); }), "expected BagMode::kSum"));
  CHECK(contains(error_of([&] { sum.forward(bag_index(), ls::tensor({0}), ls::ones({8})); }), "are (8) f32 cpu"));
  CHECK(contains(error_of([&] { bag(ls::tensor({{0, 6}})); }), "EmbeddingBag(6, 3): index 6 is outside [0, 6)"));
  CHECK(contains(error_of([] { nn::EmbeddingBag(6, 3, {.padding_idx = 6}); }), "EmbeddingBag: padding_idx is 6"));
}

TEST_CASE("EmbeddingBag has the right first and second derivatives") {
  for (const nn::BagMode mode : {nn::BagMode::kSum, nn::BagMode::kMean, nn::BagMode::kMax}) {
    nn::EmbeddingBag bag(6, 3, {.mode = mode});
    bag.to(ls::kFloat64);
    const auto f = [&](const std::vector<ls::Tensor>&) {
      return ls::sum(ls::tanh(bag.forward(bag_index(), ls::tensor({0, 3, 3, 5}))));
    };
    CHECK(ls::autograd::gradcheck(f, {bag.weight.master()}, {.second_order = true}));
  }
}

TEST_CASE("transformer decoders give PyTorch's values and gradients") {
  const nn::TransformerDecoderLayerOptions plain{.dim_feedforward = 7, .dropout = 0};
  const nn::TransformerDecoderLayerOptions first{
      .dim_feedforward = 7, .dropout = 0, .activation = nn::TransformerActivation::kGELU, .norm_first = true};
  check("decoder_layer", OneLayer(4, 2, plain));
  check("decoder_layer_norm_first", OneLayer(4, 2, first));
  check("decoder", Layers(2, 4, 2, plain, true));
  Layers masked(2, 4, 2, plain);
  masked.masks.is_causal = true;
  masked.memory_masks.key_padding_mask = ls::tensor({{false, false, false, true}, {false, true, false, false}});
  check("decoder_masked", std::move(masked));
  check_gradients(OneLayer(2, 1, nn::TransformerDecoderLayerOptions{.dim_feedforward = 3, .dropout = 0}), {2, 5, 2});
}

TEST_CASE("a decoder has PyTorch's names, options and order of inputs") {
  std::string names;
  for (const auto& [key, parameter] : nn::TransformerDecoderLayer(4, 2).named_parameters()) names += key + " ";
  CHECK(names ==
        "self_attn.in_proj_weight self_attn.in_proj_bias self_attn.out_proj.weight self_attn.out_proj.bias "
        "multihead_attn.in_proj_weight multihead_attn.in_proj_bias multihead_attn.out_proj.weight "
        "multihead_attn.out_proj.bias linear1.weight linear1.bias linear2.weight linear2.bias norm1.weight norm1.bias "
        "norm2.weight norm2.bias norm3.weight norm3.bias ");
  CHECK(nn::TransformerDecoder(2, 4, 2, {}, true).state_dict().contains("norm.weight"));
  const nn::TransformerDecoderLayer first(4, 2, {.dropout = 0}), turned(4, 2, {.dropout = 0, .batch_first = false});
  for (std::size_t i = 0; i < first.parameters().size(); ++i)
    turned.parameters()[i].master().detach().copy_(first.parameters()[i].master().detach());
  const ls::Tensor x = numbers({2, 3, 4}), memory = numbers({2, 5, 4}, {}, 2);
  check_close(turned.forward(x.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1),
              first.forward(x, memory).detach(), "time first", {1e-5, 1e-6});
  check_close(first.forward(x[0], memory[0]), first.forward(x, memory)[0].detach(), "without batch", {1e-5, 1e-6});
  CHECK(contains(error_of([] { nn::TransformerDecoder(0, 4, 2); }), "num_layers is 0, expected at least 1"));
  CHECK(
      contains(error_of([&] { first(x); }), "TransformerDecoderLayer: forward(const Tensor&) const is not overridden"));
  CHECK(contains(error_of([&] { first(std::vector<ls::Tensor>{x}); }), "called with 1 inputs, expected x and memory"));
  CHECK(contains(error_of([&] { first({x, numbers({2, 5, 3})}); }), "multihead_attn: MultiheadAttention: query is"));
}

TEST_CASE("summary takes the shapes of several inputs, and says so if one is missing") {
  nn::TransformerDecoderLayer layer(4, 2, {.dim_feedforward = 7});
  const std::string table = layer.summary({2, 3, 4}, {.more_inputs = {{2, 5, 4}}});
  CHECK_MESSAGE(contains(table, "\n(model)                  TransformerDecoderLayer  (2, 3, 4)"), table);
  CHECK_MESSAGE(contains(table, "\nlinear1                  Linear                   (2, 3, 7)"), table);
  CHECK(layer.is_training());
  const std::string error = error_of([&] { layer.summary({2, 3, 4}); });
  CHECK_MESSAGE(error.ends_with("and summary(shape, {.more_inputs = {other_shape}})"), error);
  CHECK(contains(error_of([&] {
                   layer.summary({2, 3, 4}, {.more_inputs = {{2, 5, 4}, {1}}});
                 }),
                 "called with 3 inputs"));
}
