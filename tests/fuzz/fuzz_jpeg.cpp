// Reads any bytes as a JPEG image: the result is an image no larger than the bytes can hold, or an error with a short
// text.
#include <cstdint>
#include <string>

#include "tests/fuzz/fuzz_image.h"

void fuzz_input(const std::uint8_t* data, std::size_t size) {
  std::string file = "\xff\xd8\xff";
  if (size > file.size()) file.append(reinterpret_cast<const char*>(data) + file.size(), size - file.size());
  check_image(file);
}
