#include "lockstep/base/byte_reader_internal.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"

namespace lockstep {

std::optional<std::uint64_t> array_bytes(std::span<const std::int64_t> shape, std::uint64_t item, std::uint64_t most) {
  std::uint64_t bytes = item;
  bool empty = false;
  for (const std::int64_t size : shape) {  // the product skips zeros, which would hide an overflow
    empty = empty || size == 0;
    if (size != 0 && !checked_mul(bytes, static_cast<std::uint64_t>(size), &bytes)) return std::nullopt;
  }
  if (bytes > most) return std::nullopt;
  return empty ? 0 : bytes;
}

namespace {

// The length of the UTF-8 character at the start of `text`, 1 to 4; 0 for other bytes, and for control characters.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);  // surrogates, > U+10FFFF
  const bool is_control = first == 0xc2 && second < 0xa0;
  return too_long || outside || is_control ? 0 : length;
}

}  // namespace

std::string in_quotes(std::string_view text, std::size_t shown) {
  const std::size_t widest = 2 * shown;  // escapes take four characters for a byte
  std::string out = "\"";
  std::size_t done = 0;
  while (done < std::min(text.size(), shown) && out.size() < widest) {
    const std::size_t length = printable_length(text.substr(done));
    if (done + length > shown) break;
    if (length == 0)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[done]));
    else
      out += text.substr(done, length);
    done += std::max<std::size_t>(length, 1);
  }
  out += text.size() > done ? "\"..." : "\"";
  return out;
}

std::span<const std::byte> ByteReader::bytes(std::uint64_t count, const char* what) {
  if (count > remaining()) fail(fmt::format("{}: {} bytes needed, {} left", what, count, remaining()));
  const auto taken = bytes_.subspan(position_, count);
  position_ += count;
  return taken;
}

std::string_view ByteReader::text(std::uint64_t count, const char* what) {
  const auto taken = bytes(count, what);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

void ByteReader::seek(std::uint64_t position, const char* what) {
  if (position > bytes_.size())
    fail(fmt::format("{}: at byte {}, the data end at {}", what, base_ + position, base_ + bytes_.size()));
  position_ = position;
}

void ByteReader::fail(const std::string& message) const {
  throw IoError(fmt::format("{}: byte {}: {}", file_, offset(), message));
}

void MemorySource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  LOCKSTEP_CHECK_IO(offset <= bytes_.size() && out.size() <= bytes_.size() - offset,
                    "{}: byte {}: {} bytes needed, the data end at {}", name_, offset, out.size(), bytes_.size());
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

}  // namespace lockstep
