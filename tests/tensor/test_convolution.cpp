// conv2d and its gradients against their definition, for random geometries; the same bits for any threads and images.
#include <array>
#include <random>
#include <vector>

#include "tests/support/testing.h"

namespace {

struct Geometry {
  ls::Size2d stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
};

// The result of conv2d and the gradients of x and weight for `grad`, in f64.
struct Reference {
  std::vector<double> y, x, weight;
};
Reference reference(const ls::Tensor& x, const ls::Tensor& weight, const ls::Tensor& bias, const ls::Tensor& grad,
                    const Geometry& g) {
  const auto xs = x.to_vector<double>(), ws = weight.to_vector<double>(), bs = bias.to_vector<double>(),
             gs = grad.to_vector<double>();
  Reference r{std::vector<double>(gs.size()), std::vector<double>(xs.size()), std::vector<double>(ws.size())};
  const std::int64_t in = weight.size(1), out = weight.size(0) / g.groups, kh = weight.size(2), kw = weight.size(3);
  std::size_t at = 0;
  for (std::int64_t n = 0; n < x.size(0); ++n) {
    for (std::int64_t o = 0; o < g.groups * out; ++o) {
      for (std::int64_t i = 0; i < grad.size(2); ++i) {
        for (std::int64_t j = 0; j < grad.size(3); ++j, ++at) {
          r.y[at] = bs[static_cast<std::size_t>(o)];
          for (std::int64_t e = 0; e < in * kh * kw; ++e) {
            const std::int64_t c = e / (kh * kw), k = e / kw % kh, l = e % kw;
            const std::int64_t row = i * g.stride.height - g.padding.height + k * g.dilation.height;
            const std::int64_t column = j * g.stride.width - g.padding.width + l * g.dilation.width;
            if (row < 0 || row >= x.size(2) || column < 0 || column >= x.size(3)) continue;
            const std::int64_t channel = n * x.size(1) + o / out * in + c;
            const auto p = static_cast<std::size_t>((channel * x.size(2) + row) * x.size(3) + column);
            const auto q = static_cast<std::size_t>(o * in * kh * kw + e);
            r.y[at] += xs[p] * ws[q];
            r.x[p] += gs[at] * ws[q];
            r.weight[q] += gs[at] * xs[p];
          }
        }
      }
    }
  }
  return r;
}

void check_near(const ls::Tensor& have, const std::vector<double>& want, double tolerance) {
  double largest = 1, error = 0;
  const std::vector<double> values = have.detach().to_vector<double>();
  REQUIRE(values.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    error = std::max(error, std::isnan(values[i]) ? kInf : std::abs(values[i] - want[i]));
  }
  CHECK(error <= tolerance * largest);
}

ls::Tensor leaf(const ls::Shape& shape, ls::DType dtype) {
  return ls::randn(shape, ls::TensorOptions{.dtype = dtype, .requires_grad = true});
}

// Leaves NaN in memory that is free, where a pass may find its workspace.
void fill_free_memory_with_nan() {
  std::vector<ls::Tensor> tensors;
  for (std::int64_t numel = 1 << 12; numel <= 1 << 20; numel *= 2) tensors.push_back(ls::full({numel}, kNan));
}

void check_case(std::int64_t images, std::int64_t in, std::int64_t out, ls::Size2d kernel, ls::Size2d size,
                const Geometry& g, ls::DType dtype) {
  INFO(images << " images, " << g.groups << " groups of " << in << " -> " << out << ", kernel " << kernel.height << "x"
              << kernel.width << ", image " << size.height << "x" << size.width << ", stride " << g.stride.height << "x"
              << g.stride.width << ", padding " << g.padding.height << "x" << g.padding.width << ", dilation "
              << g.dilation.height << "x" << g.dilation.width << ", " << ls::name(dtype));
  const ls::Tensor x = leaf({images, g.groups * in, size.height, size.width}, dtype),
                   weight = leaf({g.groups * out, in, kernel.height, kernel.width}, dtype),
                   bias = leaf({g.groups * out}, dtype);
  fill_free_memory_with_nan();
  const ls::Tensor y = ls::conv2d(x, weight, bias, g.stride, g.padding, g.dilation, g.groups);
  const ls::Tensor grad = ls::randn(y.shape(), dtype);
  y.backward(grad);
  const Reference expected = reference(x.detach(), weight.detach(), bias.detach(), grad, g);
  const double tolerance = dtype == ls::kFloat32 ? 1e-5 : 1e-13;
  check_near(y, expected.y, tolerance);
  check_near(x.grad(), expected.x, tolerance);
  check_near(weight.grad(), expected.weight, tolerance);
}

}  // namespace

TEST_CASE("conv2d: random geometries, against the definition") {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(random);
  };
  int cases = 0;
  while (cases < 60) {
    const Geometry g{.stride = {draw(1, 3), draw(1, 3)},
                     .padding = {draw(0, 3), draw(0, 3)},
                     .dilation = {draw(1, 3), draw(1, 3)},
                     .groups = draw(1, 2)};
    const ls::Size2d kernel(draw(1, 4), draw(1, 5)), size(draw(1, 14), draw(1, 30));
    if (size.height + 2 * g.padding.height <= (kernel.height - 1) * g.dilation.height ||
        size.width + 2 * g.padding.width <= (kernel.width - 1) * g.dilation.width)
      continue;
    check_case(draw(1, 3), draw(1, 5), draw(1, 15), kernel, size, g, cases % 3 == 0 ? ls::kFloat64 : ls::kFloat32);
    ++cases;
  }
}

TEST_CASE("conv2d: shapes that gather places, take parts of an image, or have long windows") {
  check_case(5, 70, 130, 3, 4, {.padding = 1}, ls::kFloat32);  // small images, large channels
  check_case(3, 40, 90, 3, {5, 7}, {.stride = 2, .padding = 1}, ls::kFloat64);
  check_case(1, 24, 8, 3, {60, 64}, {.padding = 1}, ls::kFloat32);            // parts of an image
  check_case(2, 3, 6, {1, 40}, {2, 70}, {.padding = {0, 20}}, ls::kFloat32);  // a reach beyond a register
  check_case(1, 40, 3, 5, 9, {.padding = 2}, ls::kFloat32);                   // windows of 1,000 elements
  check_case(2, 3, 64, 3, 4, {.padding = 1}, ls::kFloat32);                   // gathered in the pass for the weight
  check_case(2, 3, 64, 3, {4, 9}, {.stride = 2, .padding = 2}, ls::kFloat32);
  check_case(2, 5, 40, {3, 33}, {3, 70}, {.stride = {1, 2}, .padding = {1, 40}},
             ls::kFloat32);  // runs of a stride of 2
}

TEST_CASE("conv2d: channels in the lanes of registers") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    check_case(3, 32, 48, 3, 14, {.padding = 1}, dtype);
    check_case(2, 64, 32, 3, {9, 33}, {.padding = {0, 2}, .groups = 2}, dtype);
    check_case(4, 32, 64, 3, {17, 21}, {.stride = 2, .padding = 1}, dtype);
    check_case(1, 64, 64, {2, 5}, {11, 45}, {.padding = 2, .dilation = {2, 1}}, dtype);
    check_case(2, 96, 32, 3, {40, 64}, {.padding = 1}, dtype);  // parts of an image
  }
}

TEST_CASE("conv2d: sums over the places of a large image are no long sequences, whose rounding errors would add up") {
  const ls::Tensor x = ls::ones({1, 1, 400, 400}), weight = ls::zeros({1, 1, 3, 3}, ls::requires_grad());
  const ls::Tensor y = ls::conv2d(x, weight, {}, 1, 1);
  y.backward(ls::full(y.shape(), 0.1));
  CHECK(std::abs(weight.grad()[0][0][1][1].item<double>() - 16000) <= 1.5e-5 * 16000);  // 4e-5 without parts
}

TEST_CASE("conv2d: the bits of an image do not depend on the other images, nor those of a pass on the threads") {
  struct Shape {
    std::int64_t in, out, size;
  };
  // The last has channels in lanes for 9 images, and not for one.
  for (const Shape& s :
       {Shape{8, 12, 20}, Shape{64, 128, 7}, Shape{64, 128, 3}, Shape{32, 64, 14}, Shape{32, 64, 24}}) {
    INFO(s.in << " -> " << s.out << ", " << s.size << " x " << s.size);
    const ls::Tensor x = ls::randn({9, s.in, s.size, s.size}), weight = ls::randn({s.out, s.in, 3, 3});
    const ls::Tensor y = ls::conv2d(x, weight, {}, 1, 1);
    for (std::int64_t n : {0, 4, 8})
      CHECK(same_bits(y.slice(0, n, n + 1), ls::conv2d(x.slice(0, n, n + 1), weight, {}, 1, 1)));
    const auto of_pass = [&](int threads) {  // the result and both gradients
      const int before = ls::num_threads();
      ls::set_num_threads(threads);
      const ls::Tensor a = x.clone().requires_grad_(), b = weight.clone().requires_grad_();
      const ls::Tensor result = ls::conv2d(a, b, {}, 1, 1);
      result.square().sum().backward();
      ls::set_num_threads(before);
      return std::array{result.detach(), a.grad(), b.grad()};
    };
    const auto one = of_pass(1);
    for (const int threads : {2, 3, 9}) {
      const auto several = of_pass(threads);
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], several[i]));
    }
  }
}
