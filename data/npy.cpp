// The .npy format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include "lockstep/data/npy_internal.h"
#include "lockstep/data/readers.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/file_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// An element as the file stores it, and the dtype it becomes here.
struct Element {
  char kind;  // NumPy's: b bool, i integer, u unsigned, f floating
  std::size_t bytes;
  bool swap;  // the other byte order than this machine's
  DType dtype;
};

struct NpyHeader {
  Element element;
  bool fortran_order;
  Shape shape;
  std::uint64_t data_offset;
};

// Reads the Python dictionary of literals that an .npy header is: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class Literal {
 public:
  Literal(std::string_view text, const std::string& file, std::uint64_t base) : text_(text), file_(file), base_(base) {}

  bool accept(char c) {
    skip_space();
    if (position_ == text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }
  std::string_view string() {
    const char quote = accept('\'') ? '\'' : accept('"') ? '"' : '\0';
    if (!quote) fail("expected a quoted string");
    const auto end = text_.find(quote, position_);
    if (end == std::string_view::npos) fail("a string without an end");
    const auto value = text_.substr(position_, end - position_);
    position_ = end + 1;
    return value;
  }
  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (!text_.substr(position_).starts_with(word)) continue;
      position_ += word.size();
      return value;
    }
    fail("expected True or False");
  }
  // (), (5,), (2, 3)
  Shape tuple() {
    Shape shape;
    expect('(');
    while (!accept(')')) {
      if (shape.dim() == kMaxDims) fail(fmt::format("more than {} dimensions", kMaxDims));
      shape.push_back(number());
      if (accept(')')) break;
      expect(',');
    }
    return shape;
  }
  void end() {
    skip_space();
    if (position_ != text_.size()) fail("expected the end of the header");
  }
  [[noreturn]] void fail(const std::string& message) const {
    throw IoError(fmt::format("{}: byte {}: npy header: {}, found {}", file_, base_ + position_, message,
                              in_quotes(text_.substr(position_))));
  }

 private:
  void skip_space() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) ++position_;
  }
  std::int64_t number() {
    skip_space();
    std::int64_t value = 0;
    const char* first = text_.data() + position_;
    const auto [last, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) fail("expected a size");
    position_ += static_cast<std::size_t>(last - first);
    return value;
  }

  std::string_view text_;
  const std::string& file_;
  std::uint64_t base_;
  std::size_t position_ = 0;
};

// "<f4", "|b1", ">i8": byte order, kind, bytes.
std::optional<Element> element_of(std::string_view descr) {
  struct Known {
    std::string_view code;
    DType dtype;
  };
  static constexpr Known kKnown[] = {
      {"b1", kBool},  {"u1", kUInt8}, {"i1", kInt32}, {"i2", kInt32},   {"u2", kInt32},   {"i4", kInt32},
      {"u4", kInt64}, {"i8", kInt64}, {"u8", kInt64}, {"f2", kFloat16}, {"f4", kFloat32}, {"f8", kFloat64},
  };
  if (descr.size() != 3 || std::string_view("<>|=").find(descr[0]) == std::string_view::npos) return std::nullopt;
  for (const Known& known : kKnown) {
    if (known.code != descr.substr(1)) continue;
    const auto bytes = static_cast<std::size_t>(descr[2] - '0');
    const bool little_here = std::endian::native == std::endian::little;
    return Element{descr[1], bytes, bytes > 1 && descr[0] == (little_here ? '>' : '<'), known.dtype};
  }
  return std::nullopt;
}

Element read_element(Literal& literal) {
  if (literal.accept('[')) literal.fail("a structured array; only plain numbers are read");
  const std::string_view descr = literal.string();
  const auto element = element_of(descr);
  if (!element && descr.find('O') != std::string_view::npos) {
    literal.fail("an array of Python objects, which are never unpickled; save it as numbers");
  }
  if (!element)
    literal.fail(fmt::format("dtype {} is not one of b1 u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8", in_quotes(descr)));
  return *element;
}

NpyHeader parse_header_text(std::string_view text, const std::string& file, std::uint64_t base) {
  Literal literal(text, file, base);
  std::optional<Element> element;
  std::optional<bool> fortran;
  std::optional<Shape> shape;
  literal.expect('{');
  while (!literal.accept('}')) {
    const std::string_view key = literal.string();
    literal.expect(':');
    if (key == "descr" && !element) {
      element = read_element(literal);
    } else if (key == "fortran_order" && !fortran) {
      fortran = literal.boolean();
    } else if (key == "shape" && !shape) {
      shape = literal.tuple();
    } else {
      literal.fail(fmt::format("key {} is unknown or duplicated", in_quotes(key)));
    }
    if (literal.accept('}')) break;
    literal.expect(',');
  }
  literal.end();
  if (!element || !fortran || !shape) literal.fail("descr, fortran_order or shape is missing");
  return {*element, *fortran, *shape, base + text.size()};
}

NpyHeader read_header(const ByteStream& stream) {
  constexpr std::uint64_t kShort = 10, kLong = 12;  // magic, version, and two bytes of length; later four
  std::vector<std::byte> start(std::min(stream.size, kShort));
  stream.read(start);
  ByteReader reader(start, stream.name);
  if (reader.remaining() < kMagic.size() || reader.text(kMagic.size(), "magic") != kMagic) {
    reader.fail("not an npy file: it does not begin with \\x93NUMPY");
  }
  const auto version = reader.little<std::uint8_t>("version");
  reader.skip(1, "version");
  if (version < 1 || version > 3) reader.fail(fmt::format("npy version {}; 1, 2 and 3 are known", version));
  std::uint64_t length = reader.little<std::uint16_t>("header length");
  if (version > 1) {
    std::vector<std::byte> high(std::min(stream.size, kLong) - kShort);
    stream.read(high);
    length |= std::uint64_t{ByteReader(high, stream.name, kShort).little<std::uint16_t>("header length")} << 16;
  }
  const std::uint64_t begin = version > 1 ? kLong : kShort;
  if (length > limits::kNpyHeaderBytes || length > stream.size - begin) {
    reader.fail(fmt::format("header length {}; the file has {} bytes, and {} are allowed", length, stream.size,
                            limits::kNpyHeaderBytes));
  }
  std::vector<std::byte> text(length);
  stream.read(text);
  return parse_header_text({reinterpret_cast<const char*>(text.data()), text.size()}, stream.name, begin);
}

// Elements of the shape, after checking that the file holds exactly that many bytes: nothing is allocated before.
std::uint64_t checked_count(const NpyHeader& header, const ByteStream& stream) {
  std::uint64_t bytes = header.element.bytes;
  bool fits = true, empty = false;
  for (const std::int64_t size : header.shape) {  // zeros are left out, or (0, 2^62, 2^62) would pass
    empty = empty || size == 0;
    fits = fits && (size == 0 || checked_mul(bytes, static_cast<std::uint64_t>(size), &bytes));
  }
  fits = fits && bytes <= limits::kArrayBytes;
  LOCKSTEP_CHECK_IO(fits, "{}: npy header: shape {} is more than the {} bytes an array may have", stream.name,
                    header.shape.to_string(), limits::kArrayBytes);
  if (empty) bytes = 0;
  const std::uint64_t held = stream.size - header.data_offset;
  LOCKSTEP_CHECK_IO(bytes == held, "{}: byte {}: shape {} of {} bytes each needs {} bytes, the file has {}",
                    stream.name, header.data_offset, header.shape.to_string(), header.element.bytes, bytes, held);
  return bytes / header.element.bytes;
}

template <class T>
T load(const std::byte* at, bool swap) {
  std::byte raw[sizeof(T)];
  std::memcpy(raw, at, sizeof(T));
  if (swap) std::reverse(raw, raw + sizeof(T));
  return std::bit_cast<T>(raw);
}

// Turns `count` stored elements into the tensor's: reads forward and writes forward, so it may widen from a copy only.
template <class Stored, class Target>
void convert_elements(std::span<const std::byte> from, bool swap, Target* to, const std::string& file) {
  for (std::size_t i = 0; i < from.size() / sizeof(Stored); ++i) {
    const auto value = load<Stored>(from.data() + i * sizeof(Stored), swap);
    if constexpr (std::is_same_v<Stored, std::uint64_t>) {
      LOCKSTEP_CHECK_IO(value >> 63 == 0, "{}: the u64 value {} does not fit i64", file, value);
    }
    to[i] = static_cast<Target>(value);
  }
}

void convert_elements(const Element& element, std::span<const std::byte> from, const Tensor& to,
                      const std::string& file) {
  const bool swap = element.swap;
  if (element.kind == 'b') {  // any byte but 0 and 1 would be undefined behaviour as a bool
    auto* out = static_cast<std::uint8_t*>(to.raw_data());
    for (std::size_t i = 0; i < from.size(); ++i) out[i] = from[i] != std::byte{0};
  } else if (element.kind == 'i' && element.bytes == 1) {
    convert_elements<std::int8_t>(from, swap, to.data<std::int32_t>(), file);
  } else if (element.kind == 'i' && element.bytes == 2) {
    convert_elements<std::int16_t>(from, swap, to.data<std::int32_t>(), file);
  } else if (element.kind == 'u' && element.bytes == 2) {
    convert_elements<std::uint16_t>(from, swap, to.data<std::int32_t>(), file);
  } else if (element.kind == 'u' && element.bytes == 4) {
    convert_elements<std::uint32_t>(from, swap, to.data<std::int64_t>(), file);
  } else if (element.kind == 'u' && element.bytes == 8) {
    convert_elements<std::uint64_t>(from, swap, to.data<std::int64_t>(), file);
  } else {  // the same size here and there
    auto* out = static_cast<std::byte*>(to.raw_data());
    std::memcpy(out, from.data(), from.size());
    if (!swap) return;
    for (std::size_t i = 0; i < from.size(); i += element.bytes) std::reverse(out + i, out + i + element.bytes);
  }
}

// Puts elements in column-major order, as Fortran has them, where they belong in a row-major tensor.
class FortranOrder {
 public:
  explicit FortranOrder(const Tensor& to) : to_(to), index_(to.shape()) {
    for (std::int64_t& index : index_) index = 0;
  }

  // `part` holds the next elements.
  void put(const Tensor& part) {
    const std::size_t bytes = item_size(part.dtype());
    const auto* from = static_cast<const std::byte*>(part.raw_data());
    for (std::int64_t i = 0; i < part.numel(); ++i, from += bytes) {
      std::memcpy(static_cast<std::byte*>(to_.raw_data()) + offset_ * static_cast<std::int64_t>(bytes), from, bytes);
      step();
    }
  }

 private:
  void step() {
    for (int dim = 0; dim < to_.dim(); ++dim) {
      offset_ += to_.strides()[dim];
      if (++index_[dim] < to_.shape()[dim]) return;
      offset_ -= to_.strides()[dim] * index_[dim];
      index_[dim] = 0;
    }
  }

  const Tensor& to_;
  Shape index_;              // of the next element
  std::int64_t offset_ = 0;  // of the next element, in elements
};

}  // namespace

// The data pass through a small buffer, so that memory holds the tensor and no second copy.
Tensor read_npy(const ByteStream& stream) {
  constexpr std::uint64_t kChunkElements = 32 << 10;
  const NpyHeader header = read_header(stream);
  const std::uint64_t count = checked_count(header, stream);
  const Tensor out = raw::empty(header.shape, {.dtype = header.element.dtype});
  const bool in_order = !header.fortran_order || out.dim() < 2;
  const Tensor flat = raw::view(out, {static_cast<std::int64_t>(count)});
  FortranOrder order(out);
  std::vector<std::byte> chunk;
  for (std::uint64_t first = 0; first < count; first += kChunkElements) {
    const std::uint64_t last = std::min(count, first + kChunkElements);
    chunk.resize((last - first) * header.element.bytes);
    stream.read(chunk);
    const auto elements = static_cast<std::int64_t>(last - first);
    const Tensor part = in_order
                            ? raw::slice(flat, 0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(last), 1)
                            : raw::empty({elements}, out.options());
    convert_elements(header.element, chunk, part, stream.name);
    if (!in_order) order.put(part);
  }
  return out;
}

Tensor parse_npy(const ByteSource& source) {
  std::uint64_t offset = 0;
  return read_npy({.size = source.size(), .name = source.name(), .read = [&](std::span<std::byte> out) {
                     source.read_at(offset, out);
                     offset += out.size();
                   }});
}

}  // namespace lockstep::data

namespace lockstep {

Tensor load_npy(const std::string& path) { return data::parse_npy(InputFile(path)); }

}  // namespace lockstep
