// Reads any bytes: the result is a StateDict no larger than its file, whose ranges can be read alone, or an IoError with
// a short text. Tensors of dtypes that Lockstep does not have are left out, and are an IoError when read alone.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "lockstep/nn/files/safetensors_internal.h"
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
    const ls::MemorySource source(std::as_bytes(std::span(data, size)), "fuzz");
    const ls::nn::safetensors::Reader reader(source);
    for (const auto& entry : reader.entries()) {
      if (!entry.unsupported.empty()) {
        if (dict.contains(entry.name)) std::abort();
        continue;
      }
      const ls::Tensor& whole = dict.at(entry.name);
      const std::int64_t first = whole.numel() / 3, count = whole.numel() / 2;
      const ls::Tensor range = reader.read(entry, ls::TensorPart::whole(entry.shape).narrow(first, count));
      const std::size_t item = ls::item_size(whole.dtype());
      const auto* const want = static_cast<const std::byte*>(whole.raw_data()) + static_cast<std::size_t>(first) * item;
      if (count > 0 && std::memcmp(range.raw_data(), want, static_cast<std::size_t>(count) * item) != 0) std::abort();
    }
  } catch (const ls::IoError& error) {
    if (std::string(error.what()).size() > 400) std::abort();
  }
}
