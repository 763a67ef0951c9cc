// Attention by tiles on cuda:0 compared with the CPU's kernel: values and gradients.
#include "tests/cuda/host_accelerator.h"
#include "tests/support/testing.h"

namespace {

using Inputs = std::vector<ls::Tensor>;

struct Sizes {
  std::int64_t time, time_k, dim, dim_v;
  std::string text() const {
    return "time " + std::to_string(time) + ", time_k " + std::to_string(time_k) + ", dim " + std::to_string(dim) +
           ", dim_v " + std::to_string(dim_v);
  }
};

// q, k, v of (2, 2, time, dim), stored as (2, time, 2, dim) if `turned`, and the gradient of the result.
Inputs operands(const Sizes& sizes, ls::DType dtype, bool turned = false) {
  Inputs out;
  const auto add = [&](std::int64_t rows, std::int64_t columns) {
    const ls::Shape shape = turned ? ls::Shape{2, rows, 2, columns} : ls::Shape{2, 2, rows, columns};
    const ls::Tensor x = numbers(shape, {.dtype = ls::kFloat32}, static_cast<std::uint32_t>(out.size()) + 1).to(dtype);
    out.push_back(turned ? x.transpose(1, 2) : x);
  };
  add(sizes.time, sizes.dim), add(sizes.time_k, sizes.dim), add(sizes.time_k, sizes.dim_v);
  add(sizes.time, sizes.dim_v);
  return out;
}

// The same strides on another device.
ls::Tensor moved(const ls::Tensor& x, const ls::Device& device) {
  return x.is_contiguous() ? x.to(device) : x.transpose(1, 2).contiguous().to(device).transpose(1, 2);
}

// The result, and the gradients of q, k and v that are asked for.
Inputs attend(const Inputs& x, const ls::AttentionOptions& options, const ls::Device& device,
              const std::vector<bool>& needs = {true, true, true}) {
  ls::manual_seed(5);
  Inputs leaves, wanted;
  for (std::size_t i = 0; i < 3; ++i) {
    leaves.push_back(moved(x[i], device).detach().requires_grad_(needs[i]));
    if (needs[i]) wanted.push_back(leaves[i]);
  }
  ls::AttentionOptions there = options;
  if (there.attn_mask.defined()) there.attn_mask = there.attn_mask.to(device);
  const ls::Tensor y = ls::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], there);
  CHECK(y.dtype() == x[0].dtype());
  Inputs out = {y.detach()};
  for (const ls::Tensor& gradient : ls::autograd::grad({y}, wanted, {.grad_outputs = {moved(x[3], device)}}))
    out.push_back(gradient);
  return out;
}

Tolerance allowed(ls::DType dtype) {
  if (dtype == ls::kFloat64) return {1e-11, 1e-12};
  if (dtype == ls::kFloat32) return {2e-5, 2e-5};
  return dtype == ls::kFloat16 ? Tolerance{0x1p-8, 0x1p-8} : Tolerance{0x1p-5, 0x1p-5};
}

void compare(const Inputs& have, const Inputs& want, ls::DType dtype) {
  REQUIRE(have.size() == want.size());
  for (std::size_t i = 0; i < have.size(); ++i) {
    CHECK(have[i].dtype() == dtype);
    check_close(have[i].to("cpu").to(ls::kFloat64), want[i].to(ls::kFloat64),
                i == 0 ? "value" : "gradient " + std::to_string(i - 1), allowed(dtype));
  }
}

// Compares with the CPU, which computes f16 and bf16 operands in f32.
void check(const std::string& what, const Inputs& x, const ls::AttentionOptions& options = {}) {
  INFO(what, ", ", std::string(ls::name(x[0].dtype())), options.is_causal ? ", causal" : "");
  const TestDevices devices;
  const Inputs have = attend(x, options, devices[0]);
  compare(have, attend(x, options, "cpu"), x[0].dtype());
  const Inputs again = attend(x, options, devices[0]);
  for (std::size_t i = 0; i < have.size(); ++i) CHECK(same_bits(have[i].to("cpu"), again[i].to("cpu")));
}

const ls::DType kAll[] = {ls::kFloat32, ls::kFloat64, ls::kFloat16, ls::kBFloat16};

}  // namespace

TEST_CASE("attention on cuda:0, tiles of every size") {
  const bool on_gpu =
      TestDevices().are_gpus();  // elsewhere a part of the sizes: loops in place of tensor cores are slow
  const auto is_chosen = [&](ls::DType dtype, std::int64_t dim, std::int64_t time) {
    if (time == 5) return true;
    if (on_gpu) return dim <= 64 || time == 130;
    return (dtype == ls::kFloat32 || dtype == ls::kBFloat16) && (time == 65 || (time == 130 && dim == 32)) && dim <= 64;
  };
  for (const ls::DType dtype : kAll) {
    for (const std::int64_t dim : {1, 8, 32, 64, 80, 128}) {
      for (const std::int64_t time : {1, 5, 64, 65, 130}) {
        if (!is_chosen(dtype, dim, time)) continue;
        const Sizes sizes{time, time, dim, dim};
        for (const bool causal : {false, true})
          check(sizes.text(), operands(sizes, dtype, time == 65), {.is_causal = causal});
      }
    }
  }
}

TEST_CASE("attention on cuda:0, other times and dimensions for keys and values") {
  const bool on_gpu = TestDevices().are_gpus();
  for (const ls::DType dtype : kAll) {
    for (const Sizes& sizes : {Sizes{5, 70, 8, 3}, Sizes{70, 5, 3, 8}, Sizes{65, 200, 64, 64}, Sizes{200, 65, 64, 64},
                               Sizes{40, 33, 130, 20}, Sizes{40, 33, 20, 150}, Sizes{17, 9, 300, 4}}) {
      if (!on_gpu && sizes.dim == 64 && dtype != ls::kBFloat16) continue;
      for (const bool causal : {false, true})
        check(sizes.text(), operands(sizes, dtype), {.is_causal = causal, .scale = 0.3});
    }
  }
}

TEST_CASE("attention on cuda:0 with masks and fully masked rows") {
  const Sizes sizes{70, 90, 8, 8};
  for (const ls::DType dtype : kAll) {
    const Inputs x = operands(sizes, dtype);
    for (const ls::Shape& shape : {ls::Shape{70, 90}, ls::Shape{90}, ls::Shape{70, 1}, ls::Shape{2, 1, 1, 90},
                                   ls::Shape{2, 70, 1}, ls::Shape{2, 2, 70, 90}}) {
      check("bool mask " + shape.to_string(), x, {.attn_mask = numbers(shape, {}, 5) > -0.3});
      check("added mask " + shape.to_string(), x, {.attn_mask = numbers(shape, {}, 6).to(dtype)});
    }
    check("mask with strides", x, {.attn_mask = numbers({90, 70}, {}, 7).to(dtype).t()});
    check("no key", x, {.attn_mask = ls::zeros({70, 90}) > 0});
    check("infinite mask", x, {.attn_mask = ls::full({90}, -kInf).to(dtype)});
  }
}

TEST_CASE("attention on cuda:0 draws the CPU's dropout") {
  for (const ls::DType dtype : kAll) {
    for (const std::int64_t time_k : {1, 66, 71, 72}) {
      const Sizes sizes{70, time_k, 8, 5};
      for (const bool causal : {false, true})
        check("dropout, " + sizes.text(), operands(sizes, dtype), {.dropout_p = 0.25, .is_causal = causal});
    }
    const Sizes sizes{65, 65, 64, 64};
    check("dropout, " + sizes.text(), operands(sizes, dtype, true), {.dropout_p = 0.5, .is_causal = true});
    check("dropout of all", operands({5, 6, 8, 8}, dtype), {.dropout_p = 1});
  }
}

TEST_CASE("attention on cuda:0 computes the gradients that are needed") {
  const TestDevices devices;
  for (const ls::DType dtype : {ls::kFloat32, ls::kBFloat16}) {
    const Inputs x = operands({65, 70, 64, 64}, dtype);
    for (std::size_t i = 0; i < 3; ++i) {
      std::vector<bool> needs(3, false);
      needs[i] = true;
      compare(attend(x, {.is_causal = true}, devices[0], needs), attend(x, {.is_causal = true}, "cpu", needs), dtype);
    }
  }
}

TEST_CASE("attention on cuda:0 has second derivatives, and treats NaN as the CPU does") {
  const TestDevices devices;
  const auto second = [](const Inputs& x, const ls::Device& device) {
    Inputs leaves;
    for (std::size_t i = 0; i < 3; ++i) leaves.push_back(x[i].to(device).detach().requires_grad_());
    const ls::Tensor y = ls::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], {.is_causal = true});
    const Inputs first = ls::autograd::grad({ls::sum(y * y)}, leaves, {.create_graph = true});
    return ls::autograd::grad({ls::sum(first[0] * first[1] * first[2])}, leaves, {});
  };
  const Inputs x = operands({9, 9, 8, 8}, ls::kFloat64);
  const Inputs have = second(x, devices[0]), want = second(x, "cpu");
  for (std::size_t i = 0; i < 3; ++i) check_close(have[i].to("cpu"), want[i], "second derivative", {1e-10, 1e-10});
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat16}) {
    const auto run = [&](const ls::Device& device) {
      const ls::Tensor q = ls::tensor({{1.0}, {kNan}}).to(dtype).to(device),
                       one = ls::ones({2, 1}).to(dtype).to(device);
      return ls::scaled_dot_product_attention(q, one, one).to("cpu").to(ls::kFloat64);
    };
    check_close(run(devices[0]), run("cpu"), "NaN");
  }
}

TEST_CASE("attention with dropout in a CUDA graph draws new factors in each replay") {
  const TestDevices devices;
  const Inputs x = operands({9, 9, 8, 8}, ls::kFloat32);
  const auto run = [&](bool as_graph) {
    ls::manual_seed(5);
    const ls::Tensor q = x[0].to(devices[0]).detach().requires_grad_(), k = x[1].to(devices[0]),
                     v = x[2].to(devices[0]), grad = x[3].to(devices[0]);
    ls::Tensor y, grad_q;
    const auto step = [&] {
      y = ls::scaled_dot_product_attention(q, k, v, {.dropout_p = 0.5});
      grad_q = ls::autograd::grad({y}, {q}, {.grad_outputs = {grad}})[0];
    };
    Inputs out;
    ls::CudaGraph graph(devices[0]);
    for (int i = 0; i < 2; ++i) {
      if (as_graph)
        i == 0 ? graph.capture(step, {.warm_up = false}) : graph.replay();
      else
        step();
      out.push_back(y.detach().to("cpu").clone()), out.push_back(grad_q.to("cpu").clone());
    }
    return out;
  };
  const Inputs have = run(true), want = run(false);
  for (std::size_t i = 0; i < 4; ++i) CHECK(same_bits(have[i], want[i]));
  CHECK_FALSE(same_bits(have[0], have[2]));
}
