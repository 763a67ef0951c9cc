// JSON for numbers that may be NaN.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace report {

using Json = nlohmann::ordered_json;

// JSON has no NaN or infinity: both become null.
inline Json to_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }
inline double to_double(const Json& value) { return value.is_null() ? NAN : value.get<double>(); }

}  // namespace report
