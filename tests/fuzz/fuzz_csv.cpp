// Reads any text as CSV: the result is a table of finite numbers, or an error with a short text.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/data/readers.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;

namespace {

void parse(std::span<const std::byte> text, const ls::data::CsvOptions& options) {
  try {
    const auto set = ls::data::CsvDataset::parse(text, "fuzz", options);
    if (set.size() < 1 || set.data().size(1) != static_cast<std::int64_t>(set.features().size())) std::abort();
    for (const float value : set.data().span<float>()) {
      if (!std::isfinite(value)) std::abort();
    }
  } catch (const ls::IoError& error) {
    if (std::string(error.what()).size() > 400) std::abort();
  } catch (const ls::InvalidArgument& error) {  // the target does not exist
    if (std::string(error.what()).size() > 400) std::abort();
  }
}

}  // namespace

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  const auto text = std::as_bytes(std::span(data, size));
  parse(text, {.target = "y", .standardize = true});
  parse(text, {.target = "0", .header = false});
}
