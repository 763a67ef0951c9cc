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

TEST_CASE("sub names sub in its errors, not the addition that implements it") {
  CHECK(error_of([] { ls::sub(ls::ones({2}), ls::ones({2}, {.device = "cpu:1"})); }).starts_with("sub:"));
  CHECK(error_of([] { ls::ones({2}).sub_(ls::ones({3})); }).starts_with("sub_:"));
}

TEST_CASE("a shape mismatch shows dtype and device as well as shape") {
  CHECK(error_of([] {
          ls::ones({2, 3}) + ls::ones({4, 5}, {.dtype = ls::kFloat64});
        }) == "add: shapes do not broadcast: (2, 3) f32 cpu and (4, 5) f64 cpu");
}

TEST_CASE("a comparison names its relation") {
  CHECK(contains(error_of([] { (void)(ls::ones({2}) < ls::ones({3})); }), "(2)"));
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
