// Devices, virtual devices, and the allocator's statistics.
#include <array>

#include "tests/support/testing.h"

TEST_CASE("devices parse from text and print as the same text") {
  CHECK(ls::Device("cpu") == ls::Device());
  CHECK(ls::Device("cpu:0") == ls::Device());
  CHECK(ls::Device("cpu:7").index() == 7);
  CHECK(ls::Device("cuda") == ls::Device("cuda:0"));
  CHECK(ls::Device("cuda:3").is_cuda());
  CHECK(ls::Device(ls::DeviceType::kCpu, 2) == ls::Device("cpu:2"));
  for (const std::string text : {"cpu", "cpu:1", "cpu:255", "cuda:0", "cuda:12"})
    CHECK(ls::Device(text).to_string() == text);
}

TEST_CASE("text that is not a device is refused and quoted") {
  for (const std::string text : {"", "gpu", "cpu:", "cpu:x", "cpu:-1", "cpu:256", "cpu:1 ", " cpu", "cuda:999", "CPU",
                                 "cpu:1:2", "cpu:99999999999"}) {
    INFO("\"", text, "\"");
    CHECK(contains(error_of([&] { ls::Device device(text); }), "device"));
  }
  CHECK(contains(error_of([] { ls::Device("gpu"); }), "\"gpu\" is not a device; use cpu, cpu:N, cuda or cuda:N"));
}

TEST_CASE("mixing virtual devices in one operation is an error that names both") {
  const ls::Tensor a = ls::ones({2, 2}), b = ls::ones({2, 2}, {.device = "cpu:1"});
  const ls::Tensor index = ls::zeros({2, 2}, {.dtype = ls::kInt64, .device = "cpu:1"});
  const auto check = [](const char* op, auto function) {
    const std::string text = error_of(function);
    CHECK_MESSAGE((contains(text, "f32 cpu") && contains(text, "cpu:1")), op << ": " << text);
  };
  check("add", [&] { a + b; });
  check("add in place", [&] { a.add_(b); });
  check("mul", [&] { b* a; });
  check("div", [&] { a / b; });
  check("pow", [&] { ls::pow(a, b); });
  check("compare", [&] { (void)(a == b); });
  check("matmul", [&] { ls::matmul(a, b); });
  check("linear", [&] { ls::linear(a, b); });
  check("linear bias", [&] { ls::linear(a, a, b[0]); });
  check("cat", [&] { ls::cat({a, b}); });
  check("where", [&] { ls::where(a > 0, a, b); });
  check("where condition", [&] { ls::where(b > 0, a, a); });
  check("index_select", [&] { ls::index_select(a, 0, index[0]); });
  check("gather", [&] { ls::gather(a, 0, index); });
  check("scatter_add", [&] { ls::scatter_add(a, 0, index, a); });
  check("scatter_add source", [&] { ls::scatter_add(a, 0, index.to("cpu"), b); });
  check("maximum", [&] { ls::maximum(a, b); });
  check("allclose", [&] { ls::allclose(a, b); });
}

TEST_CASE("equal of tensors on different devices is an error, not a comparison") {
  CHECK(!error_of([] { ls::equal(ls::ones({1}), ls::ones({1}, {.device = "cpu:1"})); }).empty());
}

TEST_CASE("results are on the device of their operands") {
  const ls::TensorOptions there = {.device = "cpu:4"};
  const ls::Tensor x = numbers({4, 4}, there), index = ls::tensor({0, 1}, there);
  for (const ls::Tensor& y : {x + 1,
                              2 / x,
                              x * x,
                              ls::exp(x),
                              ls::sum(x),
                              ls::mean(x, {0}),
                              ls::var(x),
                              ls::norm(x),
                              ls::amax(x, {0}),
                              ls::argmax(x),
                              ls::matmul(x, x),
                              ls::linear(x, x),
                              ls::cat({x, x}),
                              ls::stack({x, x}),
                              x.t().contiguous(),
                              x > 0,
                              ls::where(x > 0, x, 0),
                              ls::masked_fill(x, x > 0, 1),
                              ls::index_select(x, 0, index),
                              ls::sort(x).first,
                              ls::sort(x).second,
                              ls::topk(x, 2).first,
                              ls::softmax(x, 0),
                              ls::cumsum(x, 0),
                              ls::logsumexp(x, 0),
                              x.to(ls::kFloat64),
                              x.clone(),
                              ls::zeros_like(x),
                              x[0],
                              ls::clamp(x, 0, 1),
                              ls::pow(x, 2)})
    CHECK(y.device() == ls::Device("cpu:4"));
}

TEST_CASE("moving to a virtual device copies, moving to the same device does not") {
  const ls::Tensor x = numbers({3, 2});
  const ls::Tensor y = x.to("cpu:1");
  CHECK(y.raw_data() != x.raw_data());
  CHECK(y.device() == ls::Device("cpu:1"));
  CHECK(same_bits(x, y.to("cpu")));
  CHECK(x.to("cpu:0").raw_data() == x.raw_data());
  CHECK(y.to("cpu:1").raw_data() == y.raw_data());
  CHECK(same_bits(x.t().to("cpu:2").to("cpu"), x.t()));
  y.fill_(0);
  CHECK(ls::max(ls::abs(x)).item<float>() > 0);
  x.copy_(y);
  CHECK(ls::max(ls::abs(x)).item<float>() == 0);
}

// Requests a cuda device in several ways; each is an error E.
template <class E>
void check_refused() {
  CHECK(contains(error_of<E>([] { ls::zeros({1}, {.device = "cuda:0"}); }), "cuda:0: "));
  CHECK(contains(error_of<E>([] { ls::ones({1}).to("cuda:1"); }), "cuda:1: "));
  CHECK(!error_of<E>([] { ls::tensor({1.0}, {.device = "cuda"}); }).empty());
  CHECK(!error_of<E>([] { ls::allocator_stats("cuda"); }).empty());
}

TEST_CASE("every request for a device that the build or the machine lacks is an error that names the device") {
  CHECK(ls::device_count(ls::DeviceType::kCpu) == ls::kMaxCpuDevices);
  const int count = ls::device_count(ls::DeviceType::kCuda);
  CHECK(contains(error_of<ls::Error>([] { ls::zeros({1}, {.device = "cuda:127"}); }), "cuda:127: "));
  if (count > 0) return;
  // The library may be another build than the one linked, so it must report what it lacks.
  const std::string why = error_of<ls::Error>([] { ls::zeros({1}, {.device = "cuda:0"}); });
  if (contains(why, "LOCKSTEP_WITH_CUDA=ON")) return check_refused<ls::NotBuilt>();
  CHECK(contains(why, "no CUDA device"));
  check_refused<ls::DeviceError>();
}

TEST_CASE("the allocator counts live bytes, the peak and the number of allocations separately for each device") {
  const ls::Device device("cpu:9");
  const ls::AllocatorStats before = ls::allocator_stats(device), other = ls::allocator_stats();
  ls::reset_peak_bytes(device);
  {
    const ls::Tensor a = ls::empty({1000}, {.device = device});
    const ls::AllocatorStats with_a = ls::allocator_stats(device);
    CHECK(with_a.allocations == before.allocations + 1);
    CHECK(with_a.allocated_bytes - before.allocated_bytes >= 4000);
    CHECK(with_a.allocated_bytes - before.allocated_bytes < 4400);
    { const ls::Tensor b = ls::empty({100000}, {.device = device}); }
    CHECK(ls::allocator_stats(device).allocated_bytes == with_a.allocated_bytes);
    CHECK(ls::allocator_stats(device).peak_bytes - with_a.allocated_bytes >= 400000);
    CHECK(ls::allocator_stats(device).cached_bytes >= 400000);
    const ls::Tensor view = a.view({10, 100});
    CHECK(ls::allocator_stats(device).allocations == with_a.allocations + 1);  // b alone: a view allocates nothing
    ls::reset_peak_bytes(device);
    CHECK(ls::allocator_stats(device).peak_bytes == with_a.allocated_bytes);
  }
  CHECK(ls::allocator_stats(device).allocated_bytes == before.allocated_bytes);
  CHECK(ls::allocator_stats().allocations == other.allocations);
}

TEST_CASE("a freed block serves the next tensor of its size, and empty_cache frees cached memory") {
  const void* at = ls::empty({50000}).raw_data();
  CHECK(ls::empty({50000}).raw_data() == at);
  ls::empty_cache();
  CHECK(ls::allocator_stats().cached_bytes == 0);
}

TEST_CASE("a view keeps the storage alive, and wrapped memory's owner lives as long") {
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  {
    ls::Tensor view;
    {
      const ls::Tensor base = ls::arange(1000);
      view = base.slice(0, 10, 12);
    }
    CHECK(view.to_vector<int>() == std::vector<int>{10, 11});
    CHECK(ls::allocator_stats().allocated_bytes >= before + 8000);
  }
  CHECK(ls::allocator_stats().allocated_bytes == before);
}
