// Reads any bytes as a PNG image, also with the right checksum in each chunk: the result is an image no larger than the
// bytes can inflate to, or an error with a short text.
#include <zlib.h>

#include <cstdint>
#include <string>

#include "tests/fuzz/fuzz_image.h"

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  std::string file = "\x89PNG\r\n\x1a\n";
  if (size > file.size()) file.append(reinterpret_cast<const char*>(data) + file.size(), size - file.size());
  check_image(file);
  const auto* const bytes = reinterpret_cast<const Bytef*>(file.data());
  for (std::size_t at = 8; at + 12 <= file.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | bytes[at + i];
    if (length > file.size() - at - 12) break;
    const uLong sum = crc32(0, bytes + at + 4, static_cast<uInt>(length + 4));
    at += length + 8;
    for (int shift = 24; shift >= 0; shift -= 8) file[at++] = static_cast<char>(sum >> shift);
  }
  check_image(file);
}
