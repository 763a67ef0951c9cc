// Reads any bytes: the result is an array no larger than the inflated archive, or an error with a short text.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/data/npy_internal.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  try {
    const ls::Tensor tensor = ls::data::parse_npz(ls::MemorySource(std::as_bytes(std::span(data, size)), "fuzz"));
    if (static_cast<std::size_t>(tensor.numel()) > 1032 * size) std::abort();
    for (const double value : tensor.to_vector<double>()) static_cast<void>(static_cast<volatile double>(value));
  } catch (const ls::IoError& error) {
    if (std::string(error.what()).size() > 400) std::abort();
  } catch (const ls::InvalidArgument& error) {  // several arrays, or none
    if (std::string(error.what()).size() > 400) std::abort();
  }
}
