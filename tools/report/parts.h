// Texts of numbers, and of the parts of a difference between two steps or memories.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace report {

// A smaller share of a whole does not matter.
inline constexpr double kPart = 0.1;
// A smaller share of a step is noise.
inline constexpr double kClear = 0.05;

// Nanoseconds or bytes, with words that follow or contain the number.
struct Part {
  std::int64_t size;
  std::string text;
};

double ratio(std::int64_t a, std::int64_t b);
std::string percent(double share);                            // "13 %"
std::string size_text(std::int64_t bytes);                    // "2.14 MB"
std::string listed(const std::vector<std::string>& names);    // "single, dp and ddp"
std::string in_unit_of(std::int64_t whole, std::int64_t ns);  // `ns` in the unit of time_text(whole)

// "4.38 ms of waiting, minus 0.65 ms of other differences": the parts of `whole` nanoseconds, longest first, and the sum
// of those that are not listed; in the unit of `step`.
std::string sum_text(std::vector<Part> parts, std::int64_t whole, std::int64_t step);

// The texts of the listed parts that are above 0, largest first.
std::vector<std::string> largest_parts(std::vector<Part> parts, std::int64_t whole);

}  // namespace report
