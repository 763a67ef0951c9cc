// The layers of breadth.safetensors: values and gradients of PyTorch, derivatives, names, and errors.
#include <functional>
#include <memory>
#include <string>

#include "support.h"

namespace {

template <class M, class... Arguments>
std::unique_ptr<nn::Module> make(Arguments&&... arguments) {
  return std::make_unique<M>(std::forward<Arguments>(arguments)...);
}

// Compares y and all gradients in f32 and f64, and the order of the parameters' names with `names`, unless empty.
void check(const std::string& name, std::unique_ptr<nn::Module> module, const std::string& names = "") {
  static const ls::StateDict dict = golden("breadth");
  for (const std::string& tag : float_tags()) {
    const std::string prefix = name + "." + tag + "/";
    INFO(prefix);
    load_case(*module, dict, prefix, tag);
    check_step(*module, dict, prefix, tag == "f32" ? Tolerance{2e-5, 2e-5} : Tolerance{1e-12, 1e-12});
  }
  std::string found;
  for (const auto& [key, parameter] : module->named_parameters()) found += key + " ";
  if (!names.empty()) CHECK(found == names);
}

// First and second derivatives by the input and all parameters.
void check_gradients(nn::Module& module, const ls::Tensor& x) {
  module.to(ls::kFloat64);
  std::vector<ls::Tensor> inputs = {x.to(ls::kFloat64).requires_grad_()};
  for (const nn::Parameter& p : module.parameters()) inputs.push_back(p.master());
  const auto f = [&](const std::vector<ls::Tensor>& in) { return ls::sum(ls::tanh(module(in[0]))); };
  CHECK(ls::autograd::gradcheck(f, inputs, {.second_order = true}));
}

std::string message(const nn::Module& module, const ls::Shape& shape) {
  return error_of([&] { module(ls::ones(shape)); });
}

}  // namespace

TEST_CASE("activations give PyTorch's values and gradients") {
  check("elu", make<nn::ELU>(0.7));
  check("mish", make<nn::Mish>());
  check("hardswish", make<nn::Hardswish>());
  check("hardtanh", make<nn::Hardtanh>(-2, 1.5));
  check("log_sigmoid", make<nn::LogSigmoid>());
  check("glu", make<nn::GLU>());
  check("glu_dim1", make<nn::GLU>(1));
  check("prelu", make<nn::PReLU>(), "weight ");
  check("prelu_channels", make<nn::PReLU>(4));
  CHECK(message(nn::GLU(), {2, 3}) == "GLU: x is (2, 3) f32 cpu, expected an even size along dimension -1");
  CHECK(contains(message(nn::PReLU(3), {2, 4}), "PReLU: x is (2, 4) f32 cpu, but there are 3 weights"));
}

TEST_CASE("ELU and Mish are exact near 0, and finite far from it") {
  const ls::Tensor x = ls::tensor({1e-20, -1e-20, 100.0, -100.0}, {.dtype = ls::kFloat64});
  CHECK(ls::elu(x).to_vector<double>()[1] == doctest::Approx(-1e-20).epsilon(1e-14));
  CHECK(ls::elu(x).to_vector<double>()[3] == -1);
  CHECK(ls::mish(x).to_vector<double>()[0] == doctest::Approx(0.6e-20));
  CHECK(ls::mish(x).to_vector<double>()[2] == 100);
  CHECK(std::abs(ls::mish(x).to_vector<double>()[3]) < 1e-40);
}

TEST_CASE("normalisations give PyTorch's values and gradients") {
  check("batch_norm1d", make<nn::BatchNorm1d>(6), "weight bias ");
  check("batch_norm1d_sequence", make<nn::BatchNorm1d>(3));
  check("group_norm", make<nn::GroupNorm>(2, 4), "weight bias ");
  check("group_norm_plain", make<nn::GroupNorm>(4, 4, nn::GroupNormOptions{.eps = 0.1, .affine = false}));
  check("instance_norm1d", make<nn::InstanceNorm1d>(3, nn::InstanceNorm1dOptions{.affine = true}), "weight bias ");
  check("instance_norm2d", make<nn::InstanceNorm2d>(4));
  CHECK(contains(message(nn::BatchNorm1d(3), {2, 4}), "expected (n, 3) or (n, 3, length)"));
  CHECK(contains(message(nn::BatchNorm2d(3), {2, 3}), "expected (images, 3, height, width)"));
  CHECK(contains(message(nn::GroupNorm(2, 4), {2, 3, 5}), "GroupNorm: x is (2, 3, 5) f32 cpu, expected (n, 4, ...)"));
  CHECK(
      contains(message(nn::InstanceNorm2d(3), {2, 3}), "expected (n, features, height, width) or (features, height,"));
  CHECK(
      contains(message(nn::InstanceNorm2d(3), {2, 3, 5}), "InstanceNorm2d: x is (1, 2, 3, 5) f32 cpu, expected (n, 3"));
  CHECK(error_of([] { nn::GroupNorm(3, 4); }) == "GroupNorm: 3 groups do not divide 4 channels");
}

TEST_CASE("layers of sequences give PyTorch's values and gradients") {
  check("conv1d", make<nn::Conv1d>(3, 4, 3), "weight bias ");
  check("conv1d_options",
        make<nn::Conv1d>(4, 6, 3,
                         nn::Conv1dOptions{.stride = 2, .padding = 2, .dilation = 2, .groups = 2, .bias = false}));
  check("max_pool1d", make<nn::MaxPool1d>(3, nn::MaxPool1dOptions{.stride = 2, .padding = 1, .ceil_mode = true}));
  check("avg_pool1d",
        make<nn::AvgPool1d>(3, nn::AvgPool1dOptions{.stride = 2, .padding = 1, .count_include_pad = false}));
  CHECK(nn::MaxPool1d(2)(ls::ones({3, 8})).shape() == ls::Shape{3, 4});
  CHECK(contains(message(nn::Conv1d(3, 4, 3), {1, 2, 3, 4}), "expected (n, channels, length) or (channels, length)"));
  CHECK(contains(error_of([] { nn::Conv1d(3, 4, 3, {.groups = 2}); }), "groups that divide the channels"));
}

TEST_CASE("layers that resize images give PyTorch's values and gradients") {
  using Options = nn::UpsampleOptions;
  check("conv_transpose2d", make<nn::ConvTranspose2d>(4, 3, 3), "weight bias ");
  check("conv_transpose2d_options", make<nn::ConvTranspose2d>(4, 6, ls::Size2d{3, 2},
                                                              nn::ConvTranspose2dOptions{.stride = {2, 3},
                                                                                         .padding = {1, 0},
                                                                                         .output_padding = {1, 2},
                                                                                         .groups = 2,
                                                                                         .bias = false,
                                                                                         .dilation = {1, 2}}));
  check("adaptive_avg_pool2d", make<nn::AdaptiveAvgPool2d>(ls::Size2d{3, 1}));
  check("adaptive_avg_pool2d_odd", make<nn::AdaptiveAvgPool2d>(ls::Size2d{3, 4}));
  check("nearest", make<nn::Upsample>(Options{.scale_factor = 2}));
  check("nearest_size", make<nn::Upsample>(Options{.size = ls::Size2d{5, 9}}));
  const auto bilinear = nn::UpsampleMode::kBilinear;
  check("bilinear", make<nn::Upsample>(Options{.scale_factor = 2, .mode = bilinear}));
  check("bilinear_fraction", make<nn::Upsample>(Options{.scale_factor = 1.7, .mode = bilinear}));
  check("bilinear_corners",
        make<nn::Upsample>(Options{.size = ls::Size2d{9, 3}, .mode = bilinear, .align_corners = true}));
  check("unfold",
        make<nn::Unfold>(ls::Size2d{3, 2}, nn::UnfoldOptions{.dilation = {1, 2}, .padding = {1, 0}, .stride = 2}));
  CHECK(contains(error_of([] {
                   nn::ConvTranspose2d(2, 2, 3, {.output_padding = 1})(ls::ones({1, 2, 3, 3}));
                 }),
                 "conv_transpose2d: output_padding is 1, expected 0 to stride - 1 = 0"));
  CHECK(contains(message(nn::ConvTranspose2d(2, 2, 3), {1, 3, 3, 3}), "weight (2, 2, 3, 3)"));
  CHECK(contains(message(nn::Upsample({}), {1, 3, 3, 3}), "expected one of size and scale_factor, got neither"));
  CHECK(contains(message(nn::Upsample(Options{.scale_factor = 2, .align_corners = true}), {1, 3, 3, 3}), "kNearest"));
  CHECK(contains(message(nn::AdaptiveAvgPool2d(2), {3, 3}), "AdaptiveAvgPool2d: x is (3, 3) f32 cpu"));
}

TEST_CASE("a scale_factor that gives the input's size copies, and one that gives twice the size repeats") {
  const auto columns = [](std::int64_t size, double factor, nn::UpsampleMode mode) {
    const ls::Tensor x = ls::arange(size, {.dtype = ls::kFloat32}).view({1, 1, 1, size}).expand({1, 1, size, size});
    const ls::Tensor leaf = x.clone().requires_grad_();
    const ls::Tensor y = nn::interpolate(leaf, {.scale_factor = factor, .mode = mode});
    ls::sum(y).backward();
    const double copies = static_cast<double>(y.numel()) / static_cast<double>(leaf.numel());
    CHECK(ls::equal(leaf.grad(), ls::full(leaf.shape(), copies)));  // every element is read equally often
    CHECK(ls::equal(y, y.transpose(2, 3).transpose(2, 3)));
    return y.detach().select(2, y.size(2) - 1).flatten().to_vector<double>();
  };
  using Columns = std::vector<double>;
  for (const auto mode : {nn::UpsampleMode::kNearest, nn::UpsampleMode::kBilinear}) {
    CHECK(columns(3, 1.2, mode) == Columns{0, 1, 2});
    CHECK(columns(10, 1.05, mode) == Columns{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
  CHECK(columns(3, 2.3, nn::UpsampleMode::kNearest) == Columns{0, 0, 1, 1, 2, 2});
  // Each dimension by itself: 3 -> 3 is copied, 5 -> 6 reads at floor(i / 1.25).
  const ls::Tensor x = ls::arange(15, {.dtype = ls::kFloat32}).view({1, 1, 3, 5});
  const ls::Tensor y = nn::interpolate(x, {.scale_factor = 1.25});
  CHECK(y.shape() == ls::Shape{1, 1, 3, 6});
  CHECK(y[0][0][1].to_vector<double>() == Columns{5, 5, 6, 7, 8, 9});
}

TEST_CASE("layers of images and sequences take a single one without a batch dimension") {
  const auto check_single = [](const nn::Module& layer, const ls::Shape& shape) {
    const ls::Tensor x = numbers(shape);
    INFO(layer.type_name());
    CHECK(same_bits(layer(x), layer(x.unsqueeze(0)).squeeze(0)));
  };
  check_single(nn::Unfold({2, 3}, {.padding = 1}), {2, 4, 5});
  check_single(nn::AdaptiveAvgPool2d(2), {2, 4, 6});
  check_single(nn::AdaptiveAvgPool2d({3, 2}), {2, 4, 6});
  check_single(nn::ConvTranspose2d(2, 3, 2), {2, 4, 5});
  check_single(nn::InstanceNorm1d(2), {2, 5});
  check_single(nn::InstanceNorm1d(2, {.affine = true}), {2, 5});
  check_single(nn::InstanceNorm2d(2), {2, 4, 5});
  check_single(nn::InstanceNorm2d(2, {.affine = true}), {2, 4, 5});
}

TEST_CASE("an instance norm needs two elements for each channel, and a batch of none is no error") {
  for (const ls::Shape& shape : {ls::Shape{2, 3, 1}, ls::Shape{3, 1}, ls::Shape{0, 3, 1}}) {
    CHECK(contains(message(nn::InstanceNorm1d(3), shape),
                   "InstanceNorm1d: a variance needs more than one value for each channel of a sample; x is ("));
  }
  nn::InstanceNorm2d images(3);
  CHECK(contains(message(images, {2, 3, 1, 1}), "x is (2, 3, 1, 1) f32 cpu"));
  images.eval();  // there are no running statistics
  CHECK(contains(message(images, {3, 1, 1}), "x is (3, 1, 1) f32 cpu"));
  CHECK(nn::InstanceNorm1d(3)(ls::ones({0, 3, 2})).shape() == ls::Shape{0, 3, 2});
  CHECK(nn::InstanceNorm1d(3)(ls::ones({2, 3, 0})).shape() == ls::Shape{2, 3, 0});
}

TEST_CASE("GroupNorm of one value per group gives the bias, for any number of samples") {
  const nn::GroupNorm norm(2, 2);
  norm.bias.master().detach().copy_(ls::tensor({3.0, 4.0}));
  for (const std::int64_t samples : {1, 2, 3}) {
    const ls::Tensor x = numbers({samples, 2}).requires_grad_();
    const ls::Tensor y = norm(x);
    CHECK(ls::equal(y, ls::tensor({3.0, 4.0}).expand({samples, 2})));
    y.backward(ls::ones({samples, 2}));
    CHECK(ls::equal(x.grad(), ls::zeros({samples, 2})));
  }
}

TEST_CASE("normalisations of no samples give parameters a gradient of 0, as in PyTorch") {
  const auto check_empty = [](const nn::Module& layer, const ls::Shape& shape) {
    INFO(layer.type_name(), " ", shape.to_string());
    const ls::Tensor x = ls::ones(shape, {.requires_grad = true});
    const ls::Tensor y = layer(x);
    CHECK(y.shape() == shape);
    ls::sum(y).backward();
    CHECK(x.grad().shape() == shape);
    for (const nn::Parameter& parameter : layer.parameters()) {
      INFO(parameter->shape().to_string());
      REQUIRE(parameter->grad().defined());
      CHECK(ls::equal(parameter->grad(), ls::zeros(parameter->shape())));
    }
  };
  check_empty(nn::BatchNorm1d(2), {0, 2});
  check_empty(nn::BatchNorm1d(2), {0, 2, 3});
  check_empty(nn::BatchNorm1d(2), {3, 2, 0});
  check_empty(nn::BatchNorm2d(2), {0, 2, 3, 4});
  check_empty(nn::BatchNorm2d(2, {.affine = false}), {0, 2, 3, 4});
  check_empty(nn::GroupNorm(2, 4), {0, 4, 3});
  check_empty(nn::GroupNorm(2, 4), {2, 4, 0});
  check_empty(nn::InstanceNorm1d(2, {.affine = true}), {0, 2, 3});
  check_empty(nn::LayerNorm({3}), {0, 3});
  check_empty(nn::RMSNorm({3}), {0, 3});
}

TEST_CASE("recurrent layers give PyTorch's values, gradients and states") {
  using Options = nn::RecurrentOptions;
  const Options time_first{.batch_first = false};
  check("lstm", make<nn::LSTM>(4, 3, time_first), "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 ");
  check("gru", make<nn::GRU>(4, 3, time_first), "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 ");
  check("lstm_single", make<nn::LSTM>(4, 2, time_first));
  const Options lstm{.num_layers = 2, .batch_first = true, .bidirectional = true};
  const Options gru{.num_layers = 2, .bias = false, .batch_first = false, .bidirectional = true};
  check("lstm_all", make<nn::LSTM>(4, 3, lstm));
  check("gru_all", make<nn::GRU>(4, 3, gru),
        "weight_ih_l0 weight_hh_l0 weight_ih_l0_reverse weight_hh_l0_reverse weight_ih_l1 weight_hh_l1 "
        "weight_ih_l1_reverse weight_hh_l1_reverse ");
  const ls::StateDict dict = golden("breadth");
  const auto check_states = [&](const std::string& prefix, nn::Recurrent& layer) {
    INFO(prefix);
    load_case(layer, dict, prefix, "f64");
    const nn::RecurrentState state = layer.forward_state(dict.at(prefix + "x")).state;
    check_close(state.h, dict.at(prefix + "h"), "h", {1e-12, 1e-12});
    CHECK(state.c.defined() == dict.contains(prefix + "c"));
    if (state.c.defined()) check_close(state.c, dict.at(prefix + "c"), "c", {1e-12, 1e-12});
  };
  nn::LSTM all(4, 3, lstm), single(4, 2, time_first);
  nn::GRU both(4, 3, gru);
  check_states("lstm_all.f64/", all);
  check_states("lstm_single.f64/", single);
  check_states("gru_all.f64/", both);
}

TEST_CASE("a recurrent layer continues from its state, and refuses states and inputs that do not fit") {
  ls::manual_seed(5);
  const ls::Tensor x = ls::randn({6, 2, 4});
  for (const std::int64_t layers : {1, 2}) {
    const nn::LSTM lstm(4, 3, {.num_layers = layers, .batch_first = false});
    const nn::RecurrentOutput first = lstm.forward_state(x.narrow(0, 0, 4));
    check_close(lstm.forward_state(x.narrow(0, 4, 2), first.state).y, lstm(x).narrow(0, 4, 2).detach(), "the rest",
                {1e-6, 1e-6});
    CHECK(contains(error_of([&] { lstm.forward_state(x, {.h = ls::zeros({layers, 3, 3})}); }), "the state h is"));
  }
  nn::GRU gru(4, 3, {.num_layers = 2, .batch_first = false, .dropout = 1});
  CHECK(ls::equal(gru(x), gru(x * 2)));  // all inputs of the last layer are dropped
  gru.eval();
  CHECK(!ls::equal(gru(x), gru(x * 2)));
  CHECK(contains(message(gru, {6, 2, 5}), "GRU: x is (6, 2, 5) f32 cpu, expected (time, batch, 4)"));
  CHECK(contains(error_of([] { nn::LSTM(4, 0); }), "hidden 0"));
}

TEST_CASE("transformer encoders give PyTorch's values and gradients") {
  using Options = nn::TransformerEncoderLayerOptions;
  const Options plain{.dim_feedforward = 7, .dropout = 0};
  const std::string names =
      "self_attn.in_proj_weight self_attn.in_proj_bias self_attn.out_proj.weight self_attn.out_proj.bias "
      "linear1.weight linear1.bias linear2.weight linear2.bias norm1.weight norm1.bias norm2.weight norm2.bias ";
  check("encoder_layer", make<nn::TransformerEncoderLayer>(4, 2, plain), names);
  check(
      "encoder_layer_norm_first",
      make<nn::TransformerEncoderLayer>(
          4, 2,
          Options{
              .dim_feedforward = 7, .dropout = 0, .activation = nn::TransformerActivation::kGELU, .norm_first = true}));
  check("encoder", make<nn::TransformerEncoder>(2, 4, 2, plain, true));
  // A causal mask: the first step's result does not depend on later ones.
  const nn::TransformerEncoder encoder(2, 4, 2, plain);
  const ls::Tensor x = ls::randn({1, 5, 4}), other = ls::cat({x.narrow(1, 0, 3), ls::randn({1, 2, 4})}, 1);
  const auto begin = [&](const ls::Tensor& t, bool causal) {
    return encoder.forward(t, {.is_causal = causal}).narrow(1, 0, 3);
  };
  CHECK(ls::allclose(begin(x, true), begin(other, true), 1e-5, 1e-6));
  CHECK(!ls::allclose(begin(x, false), begin(other, false), 1e-5, 1e-6));
}

TEST_CASE("layers have the right first and second derivatives") {
  ls::manual_seed(6);
  const ls::Tensor images = ls::randn({2, 2, 3, 4}), sequence = ls::randn({3, 2, 2});
  nn::ConvTranspose2d transposed(2, 4, {2, 3}, {.stride = 2, .padding = 1, .output_padding = 1, .groups = 2});
  check_gradients(transposed, images);
  nn::GroupNorm group(1, 2);
  check_gradients(group, images);
  nn::AdaptiveAvgPool2d pool({2, 3});
  check_gradients(pool, images);
  nn::Upsample bilinear({.scale_factor = 1.5, .mode = nn::UpsampleMode::kBilinear});
  check_gradients(bilinear, images);
  nn::Unfold unfold(2);
  check_gradients(unfold, images);
  nn::PReLU prelu(2);
  check_gradients(prelu, images);
  nn::Conv1d conv(2, 2, 2);
  check_gradients(conv, sequence);
  nn::TransformerEncoderLayer layer(2, 1, {.dim_feedforward = 3, .dropout = 0});
  check_gradients(layer, sequence);
}

TEST_CASE("Dropout2d zeroes whole channels while training") {
  ls::manual_seed(7);
  nn::Dropout2d drop(0.5);
  const ls::Tensor y = drop(ls::ones({8, 16, 3, 3}));
  const ls::Tensor largest = ls::amax(y, {2, 3}), smallest = ls::amin(y, {2, 3});
  CHECK(ls::equal(largest, smallest));
  const double kept = ls::mean(y).item<double>();  // 2 with probability 1/2
  CHECK((kept > 0.6 && kept < 1.4));
  CHECK(ls::max(y).item<double>() == 2);
  drop.eval();
  CHECK(ls::equal(drop(y), y));
  CHECK(contains(message(nn::Dropout2d(0.5), {2, 3}), "expected (n, channels, ...)"));
}

TEST_CASE("ModuleDict finds modules by name, and modules and apply visit all") {
  struct Net : nn::Module {
    nn::ModuleDict& heads = add<nn::ModuleDict>("heads");
    Net() {
      heads.add<nn::Linear>("a", 2, 1);
      heads.add<nn::Sequential>("b", nn::Linear(2, 3), nn::ReLU());
    }
  } net;
  CHECK(net.heads.size() == 2);
  CHECK(net.heads.keys() == std::vector<std::string>{"a", "b"});
  CHECK(net.heads.contains("b"));
  CHECK(!net.heads.contains("c"));
  CHECK(net.heads["b"](ls::ones({4, 2})).shape() == ls::Shape{4, 3});
  CHECK(contains(error_of([&] { net.heads["c"]; }), "ModuleDict: there is no module \"c\" among 2"));
  CHECK(net.state_dict().contains("heads.b.0.weight"));
  std::string names;
  net.apply([&](nn::Module& module) { names += module.type_name() + " "; });
  CHECK(names == "Net ModuleDict Linear Sequential Linear ReLU ");
  CHECK(net.modules().size() == 6);
  CHECK(net.modules()[0] == &net);
}

TEST_CASE("resizing refuses images of u8, and says how to convert them") {
  const ls::Tensor x = ls::ones({1, 1, 4, 4}, {.dtype = ls::kUInt8});
  CHECK(error_of([&] { nn::interpolate(x, {.scale_factor = 2}); }) ==
        "interpolate: x is (1, 1, 4, 4) u8 cpu, expected floating-point images (n, c, height, width); convert x with "
        ".to(kFloat32)");
  CHECK(contains(error_of([&] { nn::AdaptiveAvgPool2d(2)(x); }), "AdaptiveAvgPool2d: x is (1, 1, 4, 4) u8 cpu"));
}

TEST_CASE("interpolate refuses results that no memory holds") {
  for (const double factor : {1e12, 1e300})
    CHECK(contains(error_of([&] { nn::interpolate(ls::ones({1, 1, 4, 4}), {.scale_factor = factor}); }), "too many"));
}
