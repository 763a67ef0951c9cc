#include <charconv>
#include <cstdlib>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/environment_internal.h"

namespace lockstep {

std::optional<std::string> environment(const char* name) {
  const char* const text = std::getenv(name);
  if (!text || !*text) return std::nullopt;
  return text;
}

std::optional<int> environment_number(const char* name, int low, int high) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  return parse_number(std::string("the environment variable ") + name, *text, low, high,
                      "\nCorrect the variable, or unset it");
}

int parse_number(const std::string& what, const std::string& text, int low, int high, const char* fix) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LOCKSTEP_CHECK(error == std::errc() && end == text.data() + text.size() && value >= low && value <= high,
                 "{} is {}, expected a number from {} to {}{}", what, in_quotes(text), low, high, fix);
  return value;
}

}  // namespace lockstep
