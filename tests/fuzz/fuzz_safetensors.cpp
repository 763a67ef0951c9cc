// Reads any bytes: the result is a StateDict no larger than its file, or an IoError with a short text.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/nn/serialize.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  try {
    ls::Metadata metadata;
    const ls::StateDict dict = ls::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz", &metadata);
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : dict) {
      if (!tensor.is_contiguous()) std::abort();
      const auto* first = static_cast<const volatile std::uint8_t*>(tensor.raw_data());
      const auto length = static_cast<std::size_t>(tensor.numel()) * ls::item_size(tensor.dtype());
      for (std::size_t i = 0; i < length; ++i) static_cast<void>(first[i]);  // for AddressSanitizer
      bytes += length;
    }
    if (bytes > size) std::abort();
  } catch (const ls::IoError& error) {
    if (std::string(error.what()).size() > 400) std::abort();
  }
}
