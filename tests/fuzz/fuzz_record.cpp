// Reads any text: the result is a recorded run, equal to itself, or an error with a short text.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "tests/fuzz/watched_input.h"
#include "tools/diff/first_difference.h"

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  try {
    diff::RunRecord run{.directory = "fuzz", .tensors = {}};
    diff::add_rank(run, 0, std::as_bytes(std::span(data, size)), "fuzz");
    if (diff::compare(run, run, {}).first) {
      // A file may have a part of a tensor twice, with different values.
      for (const auto& [key, lines] : run.tensors) {
        if (lines.size() > 1) return;
      }
      std::abort();
    }
  } catch (const lockstep::Error& error) {
    if (std::string(error.what()).size() > 600) std::abort();
  }
}
