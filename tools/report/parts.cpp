#include "tools/report/parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <utility>

#include "tools/report/causes.h"

namespace report {
namespace {

constexpr double kListed = 0.03;  // a smaller part of a sum is not listed
constexpr double kRest = 0.01;    // a smaller share of a sum is rounding

}  // namespace

double ratio(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) / static_cast<double>(std::max<std::int64_t>(b, 1));
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string size_text(std::int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
  return text;
}

std::string in_unit_of(std::int64_t whole, std::int64_t ns) {
  return whole < 1'000'000 ? time_text(ns) : fmt::format("{:.2f} ms", static_cast<double>(ns) / 1e6);
}

std::string sum_text(std::vector<Part> parts, std::int64_t whole, std::int64_t step) {
  std::ranges::stable_sort(parts, std::ranges::greater(), &Part::size);
  std::vector<std::string> texts;
  std::int64_t rest = whole;
  const auto add = [&](std::int64_t size, std::string_view text) {
    const char* const sign = size < 0 ? "minus " : texts.empty() ? "" : "plus ";
    texts.push_back(fmt::format("{}{} {}", sign, in_unit_of(step, std::abs(size)), text));
  };
  for (const Part& part : parts) {
    const bool is_zero = in_unit_of(step, std::abs(part.size)) == in_unit_of(step, 0);
    if (is_zero || std::abs(ratio(part.size, whole)) < kListed) continue;
    add(part.size, part.text);
    rest -= part.size;
  }
  if (std::abs(ratio(rest, whole)) >= kRest && !in_unit_of(step, std::abs(rest)).starts_with("0.00"))
    add(rest, texts.empty() ? "of small differences" : "of other differences");
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::vector<std::string> largest_parts(std::vector<Part> parts, std::int64_t whole) {
  std::erase_if(parts, [&](const Part& part) { return part.size <= 0 || ratio(part.size, whole) < kPart; });
  std::ranges::stable_sort(parts, std::ranges::greater(), &Part::size);
  std::vector<std::string> texts;
  for (Part& part : parts) texts.push_back(std::move(part.text));
  return texts;
}

}  // namespace report
