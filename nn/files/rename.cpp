#include "lockstep/nn/files/rename.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::nn {
namespace {

std::vector<std::string_view> components(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (end > begin) parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Whether the pattern describes the whole text; appends the texts of its '*' to `stars`.
bool fits(std::string_view pattern, std::string_view text, std::vector<std::string_view>& stars) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] != '*')
    return !text.empty() && text[0] == pattern[0] && fits(pattern.substr(1), text.substr(1), stars);
  for (std::size_t taken = 0; taken <= text.size(); ++taken) {
    stars.push_back(text.substr(0, taken));
    const std::size_t count = stars.size();
    if (fits(pattern.substr(1), text.substr(taken), stars)) return true;
    stars.resize(count - 1);
  }
  return false;
}

std::string filled(const std::string& replacement, const std::vector<std::string_view>& stars) {
  std::string text;
  std::size_t next = 0;
  for (const char c : replacement) c == '*' ? text += stars[next++] : text += c;
  return text;
}

// The name with the pattern replaced; empty: the pattern does not fit.
std::optional<std::string> replaced(const std::string& name, const std::string& pattern,
                                    const std::string& replacement) {
  const std::vector<std::string_view> of_name = components(name), wanted = components(pattern);
  for (std::size_t at = 0; at + wanted.size() <= of_name.size(); ++at) {
    std::vector<std::string_view> stars;
    std::size_t k = 0;
    while (k < wanted.size() && fits(wanted[k], of_name[at + k], stars)) ++k;
    if (k < wanted.size()) continue;
    std::vector<std::string> parts(of_name.begin(), of_name.begin() + static_cast<std::ptrdiff_t>(at));
    if (!replacement.empty()) parts.push_back(filled(replacement, stars));
    parts.insert(parts.end(), of_name.begin() + static_cast<std::ptrdiff_t>(at + k), of_name.end());
    return fmt::format("{}", fmt::join(parts, "."));
  }
  return std::nullopt;
}

}  // namespace

Rename::Rename(Pairs pairs) : pairs_(std::move(pairs)) {
  for (const auto& [pattern, replacement] : pairs_) {
    LOCKSTEP_CHECK(!components(pattern).empty(), "Rename: the pattern {} has no component of a name",
                   lockstep::in_quotes(pattern));
    LOCKSTEP_CHECK(std::ranges::count(replacement, '*') <= std::ranges::count(pattern, '*'),
                   "Rename: the replacement {} has more '*' than its pattern {}", lockstep::in_quotes(replacement),
                   lockstep::in_quotes(pattern));
  }
}

std::string Rename::operator()(const std::string& name) const {
  if (function_) return (*function_)(name);
  std::string text = name;
  for (const auto& [pattern, replacement] : pairs_) text = replaced(text, pattern, replacement).value_or(text);
  return text;
}

std::optional<std::string> Rename::unused(std::vector<std::string>& names) const {
  for (const auto& [pattern, replacement] : pairs_) {
    bool fits_any = false;
    for (std::string& name : names) {
      if (std::optional<std::string> text = replaced(name, pattern, replacement)) {
        name = std::move(*text);
        fits_any = true;
      }
    }
    if (!fits_any) return pattern;
  }
  return std::nullopt;
}

}  // namespace lockstep::nn
