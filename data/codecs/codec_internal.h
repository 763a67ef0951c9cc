// Code shared by the decoders of image files. A decoder is a module: data/images.cpp opens it.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/images.h"

namespace lockstep::data {

// The function of a module, lockstep_decode_<format>. Throws IoError. It returns the image in `image`, because it has C
// linkage.
using ImageDecoder = void(std::span<const std::byte> bytes, const ImageOptions& options, const std::string& name,
                          Tensor& image);

namespace codecs {

// The errors of a library written in C: its error handler stores a message and jumps.
struct ErrorState {
  std::jmp_buf jump;
  char message[256] = {};
};

// Calls `body`, which calls a library written in C. Returns false if that reports an error: its handler has then jumped
// out of `body` past all destructors, so `body` must not own anything while it calls the library.
template <class Body>
[[gnu::noinline]] bool runs(ErrorState& error, const Body& body) {
  if (setjmp(error.jump) != 0) return false;
  body();
  return true;
}

// The size of an image, and what is made of it.
struct ImageSize {
  std::int64_t width, height;
};

// Throws IoError if an image has no or too many pixels, or needs more bytes than the file has: `least` of them.
void check_size(const ImageSize& size, double least, std::span<const std::byte> bytes, const ImageOptions& options,
                const std::string& name);

// The rows of an image, written as planes: (channels, height, width).
class Planes {
 public:
  Planes(std::int64_t channels, const ImageSize& size);

  // Writes the pixels first, first + step, ... of row y from `row`, which has `channels` values for each. Other channels
  // stay opaque: 255.
  void write(std::int64_t y, std::int64_t first, std::int64_t step, const std::uint8_t* row,
             std::int64_t channels) const;
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  std::uint8_t* data_;
  ImageSize size_;
};

}  // namespace codecs
}  // namespace lockstep::data
