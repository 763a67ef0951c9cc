// Reads any bytes as an IDX file and as the content of a gzip file: the result is an array no larger than the bytes,
// or an IoError.
#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/readers.h"
#include "tests/fuzz/watched_input.h"

namespace ls = lockstep;

namespace {

void parse(std::span<const std::byte> bytes, std::size_t most) {
  try {
    const ls::Tensor tensor = ls::data::parse_idx(bytes, "fuzz");
    if (static_cast<std::size_t>(tensor.numel()) > most) std::abort();
    for (const double value : tensor.to_vector<double>()) static_cast<void>(static_cast<volatile double>(value));
  } catch (const ls::IoError& error) {
    if (std::string(error.what()).size() > 400) std::abort();
  }
}

// Makes a gzip file with the right checksum, which a fuzzer would not find on its own.
std::vector<std::byte> gzip(std::span<const std::byte> bytes) {
  z_stream z = {};
  if (deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
  std::vector<std::byte> out(deflateBound(&z, bytes.size()));
  z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  if (deflate(&z, Z_FINISH) != Z_STREAM_END) std::abort();
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

}  // namespace

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  parse(bytes, 1032 * size);  // deflate's limit: the bytes may themselves be a gzip file
  parse(gzip(bytes), size);
}
