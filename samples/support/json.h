// JSON for numbers that may be NaN.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace samples {

// JSON has no NaN or infinity: both become null.
inline nlohmann::ordered_json to_json(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}
inline double to_double(const nlohmann::ordered_json& value) { return value.is_null() ? NAN : value.get<double>(); }

}  // namespace samples
