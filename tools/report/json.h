// JSON for numbers that may be NaN.
#pragma once

#include <fmt/format.h>
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace report {

using Json = nlohmann::ordered_json;

// JSON has no NaN or infinity: both become null.
inline Json to_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }
inline double to_double(const Json& value) { return value.is_null() ? NAN : value.get<double>(); }

// An integer: a number, or a count of bytes or nanoseconds. Throws lockstep::IoError for any other value of `what`.
template <class T>
T integer(const Json& number, const char* what) {
  constexpr std::int64_t kLargest = std::min<std::int64_t>(std::numeric_limits<T>::max(), std::int64_t{1} << 50);
  if (!number.is_number_integer() || number < -kLargest || number > kLargest)
    throw lockstep::IoError(
        fmt::format("\"{}\" is {}, expected an integer of at most {}", what, number.dump().substr(0, 80), kLargest));
  return number.get<T>();
}

// An error of the JSON reader, which repeats the text that it has read, without the middle of a long text.
inline std::string shortened(const std::string& error) {
  constexpr std::size_t kMost = 200;
  return error.size() <= kMost ? error : error.substr(0, kMost / 2) + " ... " + error.substr(error.size() - kMost / 2);
}

}  // namespace report
