#include "lockstep/nn/init.h"

#include <cmath>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/initial_internal.h"

namespace lockstep::nn::init {
namespace {

struct Fans {
  double in, out;
};

Fans fans(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(x.dim() >= 2, "{}: needs two or more dimensions to tell fan_in from fan_out, x is {}", op,
                 describe(x));
  double receptive_field = 1;
  for (int dim = 2; dim < x.dim(); ++dim) receptive_field *= static_cast<double>(x.size(dim));
  return {static_cast<double>(x.size(1)) * receptive_field, static_cast<double>(x.size(0)) * receptive_field};
}

double kaiming_std(const char* op, const Tensor& x, const KaimingOptions& options) {
  const Fans fan = fans(op, x);
  return calculate_gain(options.nonlinearity, options.a) /
         std::sqrt(options.mode == FanMode::kFanIn ? fan.in : fan.out);
}

}  // namespace

const Tensor& zeros_(const Tensor& x) { return constant_(x, 0.0); }
const Tensor& ones_(const Tensor& x) { return constant_(x, 1.0); }

const Tensor& constant_(const Tensor& x, double value) {
  initialise(x, {.kind = Initial::kConstant, .a = value});
  return x;
}

const Tensor& uniform_(const Tensor& x, double low, double high) {
  LOCKSTEP_CHECK(low <= high, "uniform_: low is {}, high is {}", low, high);
  initialise(x, {.kind = Initial::kUniform, .a = low, .b = high});
  return x;
}

const Tensor& normal_(const Tensor& x, double mean, double std) {
  LOCKSTEP_CHECK(std >= 0, "normal_: the standard deviation is {}", std);
  initialise(x, {.kind = Initial::kNormal, .a = mean, .b = std});
  return x;
}

const Tensor& trunc_normal_(const Tensor& x, double mean, double std, double a, double b) {
  const auto below = [&](double value) { return std::erfc((mean - value) / std / std::sqrt(2.0)) / 2; };
  LOCKSTEP_CHECK(std > 0 && a < b && below(b) > below(a),
                 "trunc_normal_: N({}, {}^2) in [{}, {}]; expected a positive standard deviation, and an interval of "
                 "positive probability",
                 mean, std, a, b);
  initialise(x, {.kind = Initial::kTruncatedNormal, .a = mean, .b = std, .low = a, .high = b});
  return x;
}

const Tensor& xavier_uniform_(const Tensor& x, double gain) {
  const Fans fan = fans("xavier_uniform_", x);
  const double bound = gain * std::sqrt(6.0 / (fan.in + fan.out));
  return uniform_(x, -bound, bound);
}

const Tensor& xavier_normal_(const Tensor& x, double gain) {
  const Fans fan = fans("xavier_normal_", x);
  return normal_(x, 0.0, gain * std::sqrt(2.0 / (fan.in + fan.out)));
}

double calculate_gain(Nonlinearity nonlinearity, double param) {
  switch (nonlinearity) {
    case Nonlinearity::kLinear:
    case Nonlinearity::kSigmoid:
      return 1;
    case Nonlinearity::kTanh:
      return 5.0 / 3;
    case Nonlinearity::kReLU:
      return std::sqrt(2.0);
    case Nonlinearity::kLeakyReLU:
      return std::sqrt(2.0 / (1 + param * param));
    case Nonlinearity::kSELU:
      break;
  }
  return 3.0 / 4;
}

const Tensor& kaiming_uniform_(const Tensor& x, const KaimingOptions& options) {
  const double bound = std::sqrt(3.0) * kaiming_std("kaiming_uniform_", x, options);
  return uniform_(x, -bound, bound);
}

const Tensor& kaiming_normal_(const Tensor& x, const KaimingOptions& options) {
  return normal_(x, 0.0, kaiming_std("kaiming_normal_", x, options));
}

const Tensor& orthogonal_(const Tensor& x, double gain) {
  LOCKSTEP_CHECK(x.dim() >= 2 && x.is_floating_point(),
                 "orthogonal_: needs two or more dimensions, and floating point; x is {}", describe(x));
  const std::int64_t rows = x.size(0), columns = rows > 0 ? x.numel() / rows : 0;
  initialise(x, {.kind = Initial::kOrthogonal, .a = gain, .rows = rows, .columns = columns});
  return x;
}

}  // namespace lockstep::nn::init
