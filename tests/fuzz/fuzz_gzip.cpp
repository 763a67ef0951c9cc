// Any bytes as compressed data: what they unfold to, within the limit, or an IoError.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/tensor/inflate_internal.h"

namespace ls = lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kLimit = 1 << 20;
  for (const ls::Compression compression : {ls::Compression::kGzip, ls::Compression::kDeflate}) {
    try {
      const auto out = ls::inflate_all(std::as_bytes(std::span(data, size)), compression, kLimit, "fuzz");
      if (out.size() > kLimit || out.size() > 1032 * size) std::abort();
    } catch (const ls::IoError& error) {
      if (std::string(error.what()).size() > 400) std::abort();
    }
  }
  return 0;
}
