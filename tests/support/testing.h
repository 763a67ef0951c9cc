// Expectations and golden values shared by the tests of all modules.
#pragma once

#include <doctest/doctest.h>
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace ls = lockstep;

inline constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

inline ls::StateDict golden(const std::string& theme) {
  return ls::load(LOCKSTEP_GOLDEN_DIR "/" + theme + ".safetensors");
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Returns the text of the exception of type E that `function` throws, or an empty text if it throws none. Also checks
// the limits of every message: at most three lines and 300 bytes.
template <class E = ls::InvalidArgument, class F>
std::string error_of(F function) {
  try {
    function();
  } catch (const E& error) {
    const std::string text = error.what();
    CHECK_MESSAGE(text.size() <= 300, text);
    CHECK_MESSAGE(std::count(text.begin(), text.end(), '\n') <= 2, text);
    return text;
  }
  return "";
}

// The warnings that `body` causes.
template <class Body>
std::vector<std::string> warnings_of(const Body& body) {
  std::vector<std::string> seen;
  ls::on_warning([&](const std::string& message) { seen.push_back(message); });
  body();
  ls::on_warning({});
  return seen;
}

// True for the same shape, dtype and bytes: -0 differs from 0, and NaN equals itself.
inline bool same_bits(const ls::Tensor& a, const ls::Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const ls::NoGradGuard no_grad;
  const ls::Tensor x = a.contiguous(), y = b.contiguous();
  return x.numel() == 0 ||
         std::memcmp(x.raw_data(), y.raw_data(), static_cast<std::size_t>(x.numel()) * ls::item_size(x.dtype())) == 0;
}

struct Tolerance {
  double rtol = 0, atol = 0;
};
// Tolerance between two implementations in one dtype.
inline Tolerance tolerance(ls::DType dtype) {
  return dtype == ls::kFloat32 ? Tolerance{1e-5, 1e-6} : dtype == ls::kFloat64 ? Tolerance{1e-12, 1e-14} : Tolerance{};
}

// Checks for the same shape and dtype, and for values that agree (NaN with NaN); a failure names the first difference.
inline void check_close(const ls::Tensor& have, const ls::Tensor& want, const std::string& what,
                        const Tolerance& allowed) {
  INFO(what);
  REQUIRE(have.defined());
  REQUIRE(have.shape().to_string() == want.shape().to_string());
  REQUIRE(std::string(ls::name(have.dtype())) == ls::name(want.dtype()));
  const std::vector<double> a = have.detach().to_vector<double>(), b = want.detach().to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (std::abs(a[i] - b[i]) <= allowed.atol + allowed.rtol * std::abs(b[i])) continue;
    FAIL_CHECK("element " << i << ": " << a[i] << ", expected " << b[i]);
    return;
  }
}
inline void check_close(const ls::Tensor& have, const ls::Tensor& want, const std::string& what) {
  check_close(have, want, what, tolerance(want.dtype()));
}

// Distinct numbers from -1 to 1 without a pattern; exact in f32.
inline ls::Tensor numbers(const ls::Shape& shape, const ls::TensorOptions& options = {}, std::uint32_t salt = 1) {
  ls::Tensor out = ls::empty(shape, {.dtype = ls::kFloat64});
  std::uint32_t state = salt * 2654435761u + 12345u;
  for (double& value : out.span<double>()) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<double>(static_cast<std::int32_t>(state) >> 10) * 0x1p-21;
  }
  out = out.to(options.dtype.value_or(ls::kFloat32)).to(options.device.value_or(ls::Device()));
  if (options.requires_grad) out.requires_grad_();
  return out;
}
// Distinct numbers between low and high.
inline ls::Tensor numbers_between(double low, double high, const ls::Shape& shape,
                                  const ls::TensorOptions& options = {}, std::uint32_t salt = 1) {
  const ls::NoGradGuard no_grad;
  ls::Tensor out = (numbers(shape, {.dtype = ls::kFloat64}, salt) * ((high - low) / 2) + (high + low) / 2)
                       .to(options.dtype.value_or(ls::kFloat32));
  if (options.requires_grad) out.requires_grad_();
  return out;
}

inline const std::vector<std::string>& float_tags() {
  static const std::vector<std::string> tags = {"f32", "f64"};
  return tags;
}

inline ls::DType dtype_named(const std::string& text) {
  for (int i = 0; i < ls::kDTypeCount; ++i) {
    if (text == ls::name(static_cast<ls::DType>(i))) return static_cast<ls::DType>(i);
  }
  FAIL("no dtype " << text);
  return ls::kBool;
}
