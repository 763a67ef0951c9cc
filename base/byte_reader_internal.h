// Reads untrusted bytes: every length is checked before it is used, and every error names the file and the byte where
// reading failed. All readers (safetensors, npy, npz, IDX) use it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

// Limits of the readers. A file past a limit is an IoError that names the limit. The limits keep a reader's memory,
// besides the tensors that it returns, below the file's size and 64 MiB.
namespace limits {
inline constexpr std::uint64_t kSafetensorsHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr std::uint64_t kSafetensorsTensors = 1 << 16;
inline constexpr std::uint64_t kSafetensorsNameBytes = 8 << 20;     // all names together
inline constexpr std::uint64_t kSafetensorsMetadata = 1 << 14;      // entries
inline constexpr std::uint64_t kSafetensorsTextBytes = 2 << 20;     // of one name, key or value
inline constexpr std::uint64_t kSafetensorsBlankBytes = 256 << 10;  // between two texts
inline constexpr std::uint64_t kCsvBytes = std::uint64_t{4} << 30;
inline constexpr std::uint64_t kCsvColumns = 1 << 19;
inline constexpr std::uint64_t kCsvHeaderBytes = 16 << 20;
inline constexpr std::uint64_t kArrayBytes = std::uint64_t{64} << 30;      // of one array in an IDX, npy or npz file
inline constexpr std::uint64_t kCompressedBytes = std::uint64_t{4} << 30;  // of a gzip file
inline constexpr std::uint64_t kInflatedBytes = std::uint64_t{4} << 30;    // decompressed size of gzip or deflate data
inline constexpr std::uint64_t kNpyHeaderBytes = 64 << 10;
inline constexpr std::uint64_t kZipEntries = 1 << 16;
inline constexpr std::uint64_t kZipDirectoryBytes = 16 << 20;
inline constexpr std::int64_t kPngSide = 1'000'000;  // libpng's default: a row of 16-bit RGBA has 8 MB
inline constexpr int kJpegScans = 100;
inline constexpr std::uint64_t kDeflateRatio = 1032;  // deflate's largest ratio: a file that claims more is corrupt
}  // namespace limits

// *result = a op b. Returns false on overflow.
[[nodiscard]] constexpr bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t* result) {
  return !__builtin_add_overflow(a, b, result);
}
[[nodiscard]] constexpr bool checked_mul(std::uint64_t a, std::uint64_t b, std::uint64_t* result) {
  return !__builtin_mul_overflow(a, b, result);
}

// The bytes of an array with elements of `item` bytes; empty if they are more than `most`. The sizes in `shape` are
// untrusted, but not negative.
std::optional<std::uint64_t> array_bytes(std::span<const std::int64_t> shape, std::uint64_t item, std::uint64_t most);

// Quotes `text` for a message: in double quotes, at most `shown` bytes or twice as many characters of it. Control
// characters and bytes that are not UTF-8 are written as \xNN.
std::string in_quotes(std::string_view text, std::size_t shown = 40);

// A cursor over bytes in memory, which must outlive it. Reading past the end throws IoError.
class ByteReader {
 public:
  // `file` and `base`, the offset of the first byte in that file, are for messages only.
  ByteReader(std::span<const std::byte> bytes, std::string file, std::uint64_t base = 0)
      : bytes_(bytes), file_(std::move(file)), base_(base) {}

  // Reads an integer; `what` names the field in error messages.
  template <std::unsigned_integral T>
  T little(const char* what) {
    T value = 0;
    for (int shift = 0; const std::byte byte : bytes(sizeof(T), what)) {
      value |= static_cast<T>(static_cast<T>(byte) << shift);
      shift += 8;
    }
    return value;
  }
  template <std::unsigned_integral T>
  T big(const char* what) {
    T value = 0;
    for (const std::byte byte : bytes(sizeof(T), what)) value = static_cast<T>(value << 8 | static_cast<T>(byte));
    return value;
  }
  std::span<const std::byte> bytes(std::uint64_t count, const char* what);
  std::string_view text(std::uint64_t count, const char* what);
  void skip(std::uint64_t count, const char* what) { static_cast<void>(bytes(count, what)); }
  // Moves to `position`, counted from the first byte.
  void seek(std::uint64_t position, const char* what);

  std::uint64_t remaining() const { return bytes_.size() - position_; }
  std::uint64_t offset() const { return base_ + position_; }  // in the file
  const std::string& file() const { return file_; }
  // Throws IoError "file: byte N: message".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  std::uint64_t base_;
  std::uint64_t position_ = 0;
};

// The source of a reader's bytes: a file, or memory (tests, fuzzing, archives).
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `out` with the bytes from `offset` on. Throws IoError if there are fewer.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> out) const = 0;
  virtual const std::string& name() const = 0;  // for messages
};

// Bytes in memory, which must outlive it.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  const std::string& name() const override { return name_; }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

}  // namespace lockstep
