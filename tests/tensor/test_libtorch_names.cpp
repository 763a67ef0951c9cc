// LibTorch's spellings: options as the last argument, accessors, devices, and functions and members by other names.
#include <type_traits>

#include "tests/support/testing.h"

namespace {

namespace F = ls::nn::functional;

template <class A, class B>
concept Comparable = requires(const A& a, const B& b) {
  a == b;
};

template <class T, class U>
concept HasAccessor = requires(U&& tensor) {
  static_cast<U&&>(tensor).template accessor<T, 2>();
};

}  // namespace

TEST_CASE("creation functions take a dtype, a device or both as the last argument") {
  const ls::Tensor like = ls::zeros({2, 3}, {.dtype = ls::kInt32});
  const auto check = [&](const char* what, const auto& create) {
    INFO(what);
    CHECK(create(ls::kFloat64).dtype() == ls::kFloat64);
    CHECK(create(ls::Device("cpu:1")).device() == ls::Device("cpu:1"));
    CHECK(create(ls::kCPU).device() == ls::Device());
    const ls::Tensor both = create(ls::dtype(ls::kFloat64).device("cpu:1").requires_grad());
    CHECK(both.dtype() == ls::kFloat64);
    CHECK(both.device() == ls::Device("cpu:1"));
    CHECK(both.requires_grad());
    CHECK(!create(ls::requires_grad(false).dtype(ls::kFloat32)).requires_grad());
  };
  check("empty", [](const auto& o) { return ls::empty({2, 3}, o); });
  check("zeros", [](const auto& o) { return ls::zeros({2, 3}, o); });
  check("ones", [](const auto& o) { return ls::ones(3, o); });
  check("rand", [](const auto& o) { return ls::rand({2, 3}, o); });
  check("randn", [](const auto& o) { return ls::randn({2, 3}, o); });
  check("full", [](const auto& o) { return ls::full({2, 3}, 1, o); });
  check("normal", [](const auto& o) { return ls::normal(0, 1, {2, 3}, o); });
  check("empty_like", [&](const auto& o) { return ls::empty_like(like.to(ls::kFloat32), o); });
  check("zeros_like", [&](const auto& o) { return ls::zeros_like(like.to(ls::kFloat32), o); });
  check("ones_like", [&](const auto& o) { return ls::ones_like(like.to(ls::kFloat32), o); });
  check("full_like", [&](const auto& o) { return ls::full_like(like.to(ls::kFloat32), 2, o); });
  check("rand_like", [&](const auto& o) { return ls::rand_like(like.to(ls::kFloat32), o); });
  check("randn_like", [&](const auto& o) { return ls::randn_like(like.to(ls::kFloat32), o); });
  check("arange of one", [](const auto& o) { return ls::arange(5.0, o); });
  check("arange of two", [](const auto& o) { return ls::arange(1.0, 5, o); });
  check("arange of three", [](const auto& o) { return ls::arange(1.0, 5, 2, o); });
  check("linspace", [](const auto& o) { return ls::linspace(0, 1, 5, o); });
  check("eye of one", [](const auto& o) { return ls::eye(2, o); });
  check("eye of two", [](const auto& o) { return ls::eye(2, 3, o); });
  check("tensor of a number", [](const auto& o) { return ls::tensor(1.5, o); });
  check("tensor of a row", [](const auto& o) { return ls::tensor({1.5, 2.5}, o); });
  check("tensor of rows", [](const auto& o) { return ls::tensor({{1.5}, {2.5}}, o); });
  check("tensor of a vector", [](const auto& o) { return ls::tensor(std::vector<double>{1}, o); });
  CHECK(ls::randint(5, {2}, ls::kInt32).dtype() == ls::kInt32);
  CHECK(ls::randint(1, 5, {2}, ls::kInt32).dtype() == ls::kInt32);
  CHECK(ls::randperm(5, ls::kInt32).dtype() == ls::kInt32);
}

TEST_CASE("an option as the last argument gives the values of the aggregate") {
  CHECK(same_bits(ls::arange(1, 9, 2, ls::kFloat64), ls::arange(1, 9, 2, {.dtype = ls::kFloat64})));
  CHECK(same_bits(ls::full({2}, 7, ls::kFloat64), ls::full({2}, 7, {.dtype = ls::kFloat64})));
  CHECK(same_bits(ls::tensor({{1, 2}}, ls::kFloat64), ls::tensor({{1, 2}}, {.dtype = ls::kFloat64})));
  ls::manual_seed(3);
  const ls::Tensor a = ls::randn({4}, ls::kFloat64);
  ls::manual_seed(3);
  CHECK(same_bits(a, ls::randn({4}, {.dtype = ls::kFloat64})));
}

TEST_CASE("devices are made from their type, and compared by it") {
  CHECK(ls::Device(ls::kCPU) == ls::Device("cpu"));
  CHECK(ls::Device(ls::kCUDA) == ls::Device("cuda:0"));
  CHECK(ls::Device(ls::kCUDA, 1) == ls::Device("cuda:1"));
  CHECK(ls::cuda::is_available() == (ls::device_count(ls::kCUDA) > 0));
  const ls::Tensor x = ls::ones({2}, ls::Device("cpu:1"));
  CHECK(x.is_cpu());
  CHECK(!x.is_cuda());
  CHECK(x.cpu().device() == ls::Device());
  CHECK(x.to(ls::kCPU).device() == ls::Device());
  CHECK(x.device().type() == ls::kCPU);
  // In LibTorch cuda:0 differs from kCUDA, which has no index.
  CHECK(!Comparable<ls::Device, ls::DeviceType>);
  CHECK(!Comparable<ls::DeviceType, ls::Device>);
}

TEST_CASE("an accessor reads and writes elements of any strides") {
  const ls::Tensor base = ls::arange(24.0).view({2, 3, 4}), x = base.permute({2, 0, 1}).slice(0, 1, 4, 2);
  const auto a = x.accessor<float, 3>();
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 2; ++j)
      for (std::int64_t k = 0; k < 3; ++k) CHECK(a[i][j][k] == x[i][j][k].item<float>());
  CHECK(a.size(0) == 2);
  CHECK(a.size(2) == 3);
  CHECK(a[0].size(1) == 3);
  CHECK(a.stride(0) == x.stride(0));
  CHECK(a.data() == x.data_ptr<float>());
  a[1][0][2] = -1;
  CHECK(base[0][2][3].item<float>() == -1);
  CHECK(std::is_same_v<decltype(a[0][0][0]), float&>);
}

TEST_CASE("an accessor of another dtype, rank or device names both sides") {
  const ls::Tensor x = ls::zeros({2, 3});
  const std::string found = "the tensor is (2, 3) f32 cpu";
  for (const std::string& error :
       {error_of([&] { x.accessor<double, 2>(); }), error_of([&] { x.accessor<float, 1>(); })}) {
    CHECK(contains(error, "accessor: "));
    CHECK(contains(error, found));
  }
  CHECK(contains(error_of([&] { x.accessor<double, 2>(); }), "f64 with 2 dimensions"));
  CHECK(contains(error_of([&] { x.accessor<float, 1>(); }), "f32 with 1 dimensions"));
  CHECK(HasAccessor<float, const ls::Tensor&>);
  CHECK(!HasAccessor<float, ls::Tensor>);  // it would outlive the tensor
}

TEST_CASE("members and functions by LibTorch's names") {
  const ls::Tensor x = ls::arange(6.0).view({2, 3}), y = ls::zeros({3, 2}), row = ls::ones({3});
  CHECK(x.sizes() == x.shape());
  CHECK(x.scalar_type() == ls::kFloat32);
  CHECK(x.view_as(y).raw_data() == x.raw_data());
  CHECK(x.view_as(y).shape() == y.shape());
  CHECK(row.expand_as(x).shape() == x.shape());
  CHECK(same_bits(x.mm(y).diag(), ls::diag(x.mm(y))));
  CHECK(ls::reshape(x, {-1}).shape() == ls::Shape{6});
  CHECK(ls::flatten(x.view({1, 2, 3}), 1).shape() == ls::Shape{1, 6});
  CHECK(same_bits(ls::transpose(x, 0, 1), x.t()));
  CHECK(same_bits(ls::permute(x, {1, 0}), x.t()));
  CHECK(ls::unsqueeze(x, 0).shape() == ls::Shape{1, 2, 3});
  CHECK(ls::squeeze(x.unsqueeze(0)).shape() == x.shape());
  CHECK(ls::squeeze(x.unsqueeze(0), 0).shape() == x.shape());
  float memory[] = {1, 2, 3, 4};
  CHECK(ls::from_blob(memory, {2, 2}).data_ptr<float>() == memory);
  std::uint8_t bytes[] = {1, 2};
  CHECK(ls::from_blob(bytes, 2, ls::kUInt8).dtype() == ls::kUInt8);
}

TEST_CASE("uniform_ and normal_ fill a tensor, and are refused while a gradient is recorded") {
  ls::manual_seed(5);
  const ls::Tensor u = ls::empty({10000}).uniform_(0.8, 1.0), n = ls::empty({10000}, ls::kFloat64).normal_(3, 2);
  CHECK(u.min().item<float>() >= 0.8f);
  CHECK(u.max().item<float>() <= 1.0f);
  CHECK(std::abs(u.mean().item<double>() - 0.9) < 0.01);
  CHECK(std::abs(n.mean().item<double>() - 3) < 0.1);
  CHECK(std::abs(n.std().item<double>() - 2) < 0.1);
  CHECK(contains(error_of([&] { u.uniform_(1, 0); }), "uniform_: from is 1, to is 0"));
  CHECK(contains(error_of([&] { ls::ones(2, ls::requires_grad()).uniform_(); }), "requires grad"));
}

TEST_CASE("nn::functional and lockstep have the losses of nn") {
  const ls::Tensor x = ls::log_softmax(ls::randn({4, 3}), 1), labels = ls::tensor({0, 1, 2, 1});
  CHECK(same_bits(ls::nll_loss(x, labels), ls::nn::nll_loss(x, labels)));
  CHECK(same_bits(F::cross_entropy(x, labels), ls::nn::cross_entropy(x, labels)));
  CHECK(same_bits(ls::mse_loss(x, x * 2), ls::nn::mse_loss(x, x * 2)));
  CHECK(same_bits(F::relu(x), ls::relu(x)));
  CHECK(same_bits(F::softmax(x, 1), ls::softmax(x, 1)));
}
