// Image files, written byte by byte.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>

inline std::string big(std::uint32_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> 8 * i & 0xff);
  return out;
}

inline std::string png_chunk(const std::string& kind, const std::string& data) {
  const std::string text = kind + data;
  const uLong sum = crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size()));
  return big(static_cast<std::uint32_t>(data.size()), 4) + text + big(static_cast<std::uint32_t>(sum), 4);
}

// `rows`: each row begins with the number of its filter, 0 for none. `color`: 0 grey, 2 RGB, 3 palette, 4 grey and alpha,
// 6 RGBA. `chunks` stand before the pixels.
inline std::string png_file(std::uint32_t width, std::uint32_t height, int depth, int color, const std::string& rows,
                            const std::string& chunks = "") {
  uLongf size = compressBound(rows.size());
  std::string packed(size, '\0');
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(size);
  const std::string header = big(width, 4) + big(height, 4) + static_cast<char>(depth) + static_cast<char>(color);
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header + std::string(3, '\0')) + chunks + png_chunk("IDAT", packed) +
         png_chunk("IEND", "");
}

// An RGB image of one color.
inline std::string png_of_color(std::uint32_t width, std::uint32_t height, int red, int green, int blue) {
  std::string row(1, '\0');
  for (std::uint32_t x = 0; x < width; ++x) row += {char(red), char(green), char(blue)};
  std::string rows;
  for (std::uint32_t y = 0; y < height; ++y) rows += row;
  return png_file(width, height, 8, 2, rows);
}

// A grey JPEG image of three components, each in scans of its own, of which there are `scans`. Each code has one bit.
inline std::string jpeg_of_scans(std::uint32_t width, std::uint32_t height, int scans, int frame = 0xc0) {
  const auto segment = [](int marker, const std::string& data) {
    return big(0xff00u | static_cast<unsigned>(marker), 2) + big(static_cast<std::uint32_t>(data.size()) + 2, 2) + data;
  };
  std::string file = "\xff\xd8" + segment(0xdb, std::string(1, '\0') + std::string(64, '\1'));
  std::string components;
  for (char c = 1; c <= 3; ++c) components += {c, '\x11', '\0'};
  file += segment(frame, "\x08" + big(height, 2) + big(width, 2) + "\x03" + components);
  for (const char table : {'\0', '\x10'}) file += segment(0xc4, table + std::string(1, '\1') + std::string(16, '\0'));
  const std::uint32_t blocks = (width + 7) / 8 * ((height + 7) / 8);
  for (int scan = 0; scan < scans; ++scan) {
    file += segment(0xda, {'\1', char(scan % 3 + 1), '\0', '\0', '\x3f', '\0'});
    file += std::string(blocks / 4, '\0') + (blocks % 4 > 0 ? std::string(1, char(0xff >> 2 * (blocks % 4))) : "");
  }
  return file + "\xff\xd9";
}
