// Reads any bytes as compressed data: the result is at most as large as they can inflate to, or an IoError.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/data/inflate_internal.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kMost = 1 << 20;
  for (const ls::data::Compression compression : {ls::data::Compression::kGzip, ls::data::Compression::kDeflate}) {
    try {
      ls::data::Inflater inflater(std::as_bytes(std::span(data, size)), compression, "fuzz");
      std::byte piece[1000];
      std::uint64_t sum = 0;
      while (const std::size_t count = inflater.read(piece)) {
        sum += count;
        if (count > sizeof(piece) || sum > 1032 * size) std::abort();
        if (sum > kMost) break;
      }
    } catch (const ls::IoError& error) {
      if (std::string(error.what()).size() > 400) std::abort();
    }
  }
}
