// Golden values and expectations shared by the tests of nn/.
#pragma once

#include <doctest/doctest.h>
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace ls = lockstep;
namespace nn = lockstep::nn;

inline ls::StateDict golden(const std::string& theme) {
  return ls::load(LOCKSTEP_GOLDEN_DIR "/" + theme + ".safetensors");
}

// The text of the exception of type E that `function` throws; empty where it throws none. Also holds every message to
// our own rules: at most three lines and 300 bytes.
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

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Relative tolerance for values computed by two implementations in one dtype.
inline double tolerance(ls::DType dtype) { return dtype == ls::kFloat32 ? 1e-5 : 1e-11; }

// Same shape and dtype, and values that agree (NaN with NaN); the first difference goes into the message of a failure.
inline void check_close(const ls::Tensor& have, const ls::Tensor& want, const std::string& what) {
  INFO(what);
  REQUIRE(have.defined());
  REQUIRE(have.shape().to_string() == want.shape().to_string());
  REQUIRE(have.dtype() == want.dtype());
  const double rtol = tolerance(want.dtype());
  const std::vector<double> a = have.detach().to_vector<double>(), b = want.detach().to_vector<double>();
  double largest = 0;
  for (const double value : b) largest = value == value && value <= 1e30 && value > largest ? value : largest;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])) continue;
    const double allowed = rtol * (std::abs(b[i]) + 0.1 * largest);
    CHECK_MESSAGE(std::abs(a[i] - b[i]) <= allowed, "element " << i << ": " << a[i] << ", expected " << b[i]);
  }
}

inline const std::vector<std::string>& float_tags() {
  static const std::vector<std::string> tags = {"f32", "f64"};
  return tags;
}
