// Tensors print as in PyTorch, except for the prefix of dtypes.
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/testing.h"

namespace {

// Replaces "dtype=torch.int32" by "dtype=int32".
std::string ours(std::string text) {
  const auto at = text.find("torch.");
  return at == std::string::npos ? text : text.erase(at, 6);
}

}  // namespace

TEST_CASE("tensors print as PyTorch prints them") {
  const auto texts = nlohmann::json::parse(std::ifstream(LOCKSTEP_GOLDEN_DIR "/printing.json"));
  const ls::StateDict tensors = golden("printing");
  CHECK(texts.size() == tensors.size());
  for (const auto& entry : texts.items()) {
    const auto& name = entry.key();
    const auto& text = entry.value();
    CAPTURE(name);
    const ls::Tensor& x = tensors.at(name);
    if (name == "requires_grad") x.requires_grad_();
    CHECK(x.to_string() == ours(text.get<std::string>()));
  }
}

TEST_CASE("a strided view prints like its copy") {
  const ls::Tensor x = numbers({4, 5}).t().slice(0, 0, 5, 2);
  CHECK(x.to_string() == x.contiguous().to_string());
}

TEST_CASE("a result of an operation prints the operation that made it") {
  const ls::Tensor x = ls::tensor({1.0, 2.0}, {.requires_grad = true});
  CHECK((x + x).to_string() == "tensor([2., 4.], grad_fn=<add>)");
  CHECK(x.detach().to_string() == "tensor([1., 2.])");
}

TEST_CASE("a tensor on another device prints its device, and streams print") {
  const ls::Tensor x = ls::tensor({1.0}, {.device = "cpu:2"});
  CHECK(x.to_string() == "tensor([1.], device='cpu:2')");
  std::ostringstream stream;
  stream << x;
  CHECK(stream.str() == x.to_string());
}

TEST_CASE("i64 prints every digit") {
  CHECK(ls::tensor({9007199254740993, -1l}).to_string() == "tensor([9007199254740993,               -1])");
}

TEST_CASE("dtype, device and gradient go to a line of their own where the last line has no room, as in PyTorch") {
  const auto print = [](const ls::Tensor& x) { return x.to_string(); };
  const auto count = [](std::int64_t n, const ls::TensorOptions& options) { return ls::arange(n, options); };
  CHECK(print(count(13, {.dtype = ls::kInt32})) ==
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12], dtype=int32)");
  CHECK(print(count(14, {.dtype = ls::kInt32})) ==
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13],\n       dtype=int32)");
  const ls::Tensor sevenths = (count(9, {.dtype = ls::kFloat64}) / 7.0).detach().requires_grad_();
  CHECK(print(sevenths) ==
        "tensor([0.0000, 0.1429, 0.2857, 0.4286, 0.5714, 0.7143, 0.8571, 1.0000, 1.1429],\n"
        "       dtype=float64, requires_grad=True)");
  CHECK(print(count(20, {.dtype = ls::kInt32})) ==
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n"
        "        18, 19], dtype=int32)");
  CHECK(print(sevenths.detach().view({3, 3})) ==
        "tensor([[0.0000, 0.1429, 0.2857],\n        [0.4286, 0.5714, 0.7143],\n"
        "        [0.8571, 1.0000, 1.1429]], dtype=float64)");
  CHECK(print(count(14, {.device = "cpu:1"})) ==
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13],\n       device='cpu:1')");
  CHECK(print(ls::zeros({0, 2}, {.dtype = ls::kFloat64, .device = "cpu:1"})) ==
        "tensor([], device='cpu:1', size=(0, 2), dtype=float64)");
}
