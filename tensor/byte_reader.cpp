#include "lockstep/tensor/byte_reader_internal.h"

#include <algorithm>

#include "lockstep/tensor/check_internal.h"

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

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 40;
  constexpr std::size_t kWidest = 2 * kShown;  // escapes take four characters for a byte
  std::string out = "\"";
  std::size_t shown = 0;
  for (; shown < std::min(text.size(), kShown) && out.size() < kWidest; ++shown) {
    const auto byte = static_cast<unsigned char>(text[shown]);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += text[shown];
    }
  }
  out += text.size() > shown ? "\"..." : "\"";
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
