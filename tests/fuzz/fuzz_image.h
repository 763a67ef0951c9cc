// Code shared by the fuzz targets of image files.
#pragma once

#include <cstdlib>
#include <span>
#include <string>

#include "lockstep/data/images.h"
#include "tests/fuzz/watched_input.h"

// Decodes the file in two modes, with a limit that keeps images below the limit of memory.
inline void check_image(const std::string& file) {
  namespace ls = lockstep;
  constexpr std::int64_t kPixels = 1 << 22;
  for (const ls::data::ImageReadMode mode :
       {ls::data::ImageReadMode::kUnchanged, ls::data::ImageReadMode::kGrayAlpha}) {
    try {
      const ls::Tensor image =
          ls::data::decode_image(std::as_bytes(std::span(file)), {.mode = mode, .max_pixels = kPixels}, "fuzz");
      if (image.dim() != 3 || image.size(1) * image.size(2) > kPixels) std::abort();
      unsigned sum = 0;
      for (const std::uint8_t value : image.span<std::uint8_t>()) sum += value;
      static_cast<void>(static_cast<volatile unsigned>(sum));
    } catch (const ls::IoError& error) {
      if (std::string(error.what()).size() > 400) std::abort();
    }
  }
}
