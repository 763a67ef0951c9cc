// Decompression with zlib of data that somebody else compressed, piece by piece.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::data {

enum class Compression : std::uint8_t {
  kGzip,     // a .gz file: one member or several, checksums compared
  kDeflate,  // a bare stream, as in zip archives
};

// True for data that start as gzip files do.
bool is_gzip(std::span<const std::byte> bytes);

// Unfolds a compressed stream piece by piece. It keeps a view of the compressed bytes.
class Inflater {
 public:
  // `name` is for messages.
  Inflater(std::span<const std::byte> compressed, Compression compression, std::string name);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills `out` as far as the stream goes and returns how many bytes that were: fewer than asked only at its end.
  // Throws IoError where the stream is damaged or cut off, or where something follows it.
  std::size_t read(std::span<std::byte> out);
  // Starts again at the first byte.
  void rewind();

 private:
  bool next_member();
  [[noreturn]] void fail(const char* what) const;

  std::span<const std::byte> compressed_, left_;
  Compression compression_;
  std::string name_;
  z_stream stream_ = {};
  bool ended_ = false;
};

}  // namespace lockstep::data
