// Errors for arguments that do not fit: the operation, both operands, at most three lines.
#include "tests/support/testing.h"

TEST_CASE("messages of operations name the operation and show both operands") {
  const ls::Tensor a = ls::ones({2, 3}), b = ls::ones({4, 5});
  const auto check = [](const std::string& op, auto function) {
    const std::string text = error_of(function);
    CHECK_MESSAGE((text.starts_with(op + ":") && contains(text, "(2, 3)") && contains(text, "(4, 5)")),
                  op << " says: " << text);
  };
  check("add", [&] { a + b; });
  check("sub", [&] { a - b; });
  check("mul", [&] { a* b; });
  check("div", [&] { a / b; });
  check("pow", [&] { ls::pow(a, b); });
  check("maximum", [&] { ls::maximum(a, b); });
  check("where", [&] { ls::where(a > 0, a, b); });
  check("matmul", [&] { ls::matmul(a, b); });
  check("linear", [&] { ls::linear(a, b); });
  check("cat", [&] { ls::cat({a, b}); });
  check("stack", [&] { ls::stack({a, b}); });
  check("expand", [&] { a.expand({4, 5}); });
  check("add_", [&] { a.add_(b); });
  check("mul_", [&] { a.mul_(b); });
  check("div_", [&] { a.div_(b); });
  check("copy_", [&] { a.copy_(b); });
  check("masked_fill", [&] { ls::masked_fill(a, b > 0, 0); });
  check("set_grad", [&] { a.set_grad(b); });
  check("allclose", [&] { ls::allclose(a, b); });
}

TEST_CASE("an undefined operand is named with its operation, and the message says what to do") {
  const ls::Tensor none, x = ls::ones({2, 3});
  const auto check = [](const std::string& beginning, auto function) {
    const std::string text = error_of([&] { (void)function(); });
    CHECK_MESSAGE(text.starts_with(beginning + " is undefined: a Tensor() without a value, "), beginning, ": ", text);
    CHECK_MESSAGE(text.ends_with("\nAssign it first, or test it with defined()"), text);
  };
  check("add: the argument a", [&] { return none + x; });
  check("add: the argument b", [&] { return x + none; });
  check("add: the tensor", [&] { return none + 1; });
  check("sub: the tensor", [&] { return 1 - none; });
  check("div: the tensor", [&] { return 1 / none; });
  check("mul: the argument b", [&] { return x * none; });
  check("max: the argument a", [&] { return ls::max(none, x); });
  check("<: the argument b", [&] { return x < none; });
  check("relu: the tensor", [&] { return ls::relu(none); });
  check("neg: the tensor", [&] { return -none; });
  check("pow: the argument base", [&] { return ls::pow(none, 2); });
  check("clamp_min: the tensor", [&] { return ls::clamp_min(none, 0); });
  check("isnan: the tensor", [&] { return ls::isnan(none); });
  check("sum: the tensor", [&] { return ls::sum(none); });
  check("mean: the tensor", [&] { return none.mean(1); });
  check("argmax: the tensor", [&] { return none.argmax(1); });
  check("softmax: the tensor", [&] { return ls::softmax(none, 1); });
  check("matmul: the argument b", [&] { return ls::matmul(x, none); });
  check("mm: the argument a", [&] { return ls::mm(none, x); });
  check("linear: the argument x", [&] { return ls::linear(none, x); });
  check("linear: the argument weight", [&] { return ls::linear(x, none); });
  check("conv2d: the argument weight", [&] { return ls::conv2d(ls::ones({1, 1, 2, 2}), none); });
  check("layer_norm: the argument x", [&] { return ls::layer_norm(none, {3}); });
  check("dropout: the argument x", [&] { return ls::dropout(none); });
  check("cat: the argument tensors[1]", [&] { return ls::cat({x, none}); });
  check("stack: the argument tensors[0]", [&] { return ls::stack({none, x}); });
  check("where: the argument condition", [&] { return ls::where(none, x, x); });
  check("index_select: the argument index", [&] { return ls::index_select(x, 0, none); });
  check("scaled_dot_product_attention: the argument v", [&] { return ls::scaled_dot_product_attention(x, x, none); });
  check("cross_entropy: the argument target", [&] { return ls::nn::cross_entropy(x, none); });
  check("mse_loss: the argument x", [&] { return ls::nn::mse_loss(none, x); });
  check("view: the tensor", [&] { return none.view({1}); });
  check("operator[]: the tensor", [&] { return none[0]; });
  check("to: the tensor", [&] { return none.to(ls::kFloat64); });
  check("size: the tensor", [&] { return none.size(0); });
  check("item: the tensor", [&] { return none.item(); });
  check("item: the tensor", [&] { return none.item<float>(); });
  check("backward: the tensor", [&] { return none.backward(), 0; });
  check("add_: the tensor", [&] { return none.add_(x); });
  check("add_: the argument other", [&] { return x.add_(none); });
  check("copy_: the argument other", [&] { return x.copy_(none); });
}

TEST_CASE("messages name the operation that was called, not one that it consists of") {
  const ls::Tensor x = ls::ones({2, 3}), other = ls::ones({2, 3}, {.device = "cpu:1"}), m = x > 0;
  const ls::Tensor none = ls::zeros({0});
  const ls::TensorOptions long_leaf = {.dtype = ls::kInt64, .requires_grad = true};
  const auto check = [](const std::string& op, auto function) {
    const std::string text = error_of([&] { (void)function(); });
    CHECK_MESSAGE(text.starts_with(op + ": "), op << " says: " << text);
  };
  check("empty", [] { return ls::empty({-1}); });
  check("zeros", [] { return ls::zeros({-1}); });
  check("zeros", [&] { return ls::zeros({1}, long_leaf); });
  check("ones", [] { return ls::ones({-1}); });
  check("full", [] { return ls::full({-1}, 1); });
  check("zeros_like", [&] { return ls::zeros_like(x, long_leaf); });
  check("ones_like", [] { return ls::ones_like(ls::Tensor()); });
  check("rand", [] { return ls::rand({-1}); });
  check("randn", [] { return ls::randn({-1}); });
  check("randint", [] { return ls::randint(5, {-1}); });
  check("randperm", [] { return ls::randperm(-1); });
  check("eye", [] { return ls::eye(-1); });
  check("linspace", [] { return ls::linspace(0, 1, -1); });
  check("arange", [] { return ls::arange(0.0, 1.0, 1e-300); });
  check("tensor", [&] { return ls::tensor({1, 2}, long_leaf); });
  check("stack", [&] { return ls::stack({x, other}); });
  check("stack", [&] { return ls::stack({x}, 5); });
  check("split", [&] { return ls::split(x, 1, 2); });
  check("chunk", [&] { return ls::chunk(x, 2, 2); });
  check("narrow", [&] { return x.narrow(2, 0, 1); });
  check("operator[]", [&] { return x[2]; });
  check("repeat", [&] { return x.repeat({1, -2}); });
  check("masked_fill", [&] { return ls::masked_fill(other, m, 0); });
  check("masked_fill", [&] { return ls::masked_fill(x, x, 0); });
  check("max", [&] { return ls::max(x, other); });
  check("min", [&] { return ls::min(x, ls::ones({4})); });
  check("max", [&] { return ls::max(x, 2); });
  check("clamp_min", [&] { return ls::clamp_min(m, false); });
  check("clamp_max", [&] { return ls::clamp_max(m, true); });
  check("std", [&] { return ls::std(x, {2}); });
  check("norm", [&] { return ls::norm(x, 1, {2}); });
  check("norm", [&] { return ls::norm(none, kInf); });
  check("mean", [&] { return ls::mean(x, {2}); });
  check("logsumexp", [&] { return ls::logsumexp(x, {2}); });
  check("argmax", [&] { return none.argmax(); });
  check("==", [&] { return x == other; });
  check("<=", [&] { return x <= ls::ones({4}); });
  check(">", [&] { return other > x; });
  check("batch_norm",
        [&] { return ls::batch_norm(x, {}, {}, ls::ones({3}), ls::ones({3}, {.device = "cpu:1"}), false); });
}

TEST_CASE("set_operation replaces the operation, or adds it") {
  ls::InvalidArgument error("cat: sizes differ: 1 and 2");
  error.set_operation("stack");
  CHECK(std::string(error.what()) == "stack: sizes differ: 1 and 2");
  ls::InvalidArgument bare("no operation here");
  bare.set_operation("stack");
  CHECK(std::string(bare.what()) == "stack: no operation here");
}

TEST_CASE("sub names sub in its errors, not the addition that implements it") {
  CHECK(error_of([] { ls::sub(ls::ones({2}), ls::ones({2}, {.device = "cpu:1"})); }).starts_with("sub:"));
  CHECK(error_of([] { ls::ones({2}).sub_(ls::ones({3})); }).starts_with("sub_:"));
}

TEST_CASE("a shape mismatch shows dtype and device as well as shape") {
  CHECK(error_of([] {
          ls::ones({2, 3}) + ls::ones({4, 5}, {.dtype = ls::kFloat64});
        }) == "add: shapes do not broadcast: (2, 3) f32 cpu and (4, 5) f64 cpu");
}

TEST_CASE("context and module names go before the message, module names joined by dots") {
  ls::InvalidArgument error("linear: inner sizes differ");
  error.add_module("fc1");
  CHECK(std::string(error.what()) == "fc1: linear: inner sizes differ");
  error.add_module("net");
  CHECK(std::string(error.what()) == "net.fc1: linear: inner sizes differ");
  error.add_context("epoch 3");
  CHECK(std::string(error.what()) == "epoch 3: net.fc1: linear: inner sizes differ");
}

TEST_CASE("every exception of the library is an Error and a runtime_error") {
  CHECK_THROWS_AS(throw ls::InvalidArgument("x"), ls::Error);
  CHECK_THROWS_AS(throw ls::CommTimeout("x"), ls::CommError);
  CHECK_THROWS_AS(throw ls::IoError("x"), std::runtime_error);
  CHECK(std::string(ls::DeviceError("text").what()) == "text");
}

TEST_CASE("describe gives shape, dtype and device") {
  CHECK(ls::describe(ls::zeros({2, 3})) == "(2, 3) f32 cpu");
  CHECK(ls::describe(ls::zeros({}, {.dtype = ls::kInt64, .device = "cpu:1"})) == "() i64 cpu:1");
  CHECK(ls::describe(ls::Tensor()) == "undefined");
}

TEST_CASE("set_num_threads refuses less than one thread") {
  CHECK(contains(error_of([] { ls::set_num_threads(0); }), "set_num_threads: 0 threads"));
}
