// The .npy format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include "lockstep/data/npy_internal.h"
#include "lockstep/data/readers.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

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
    while (position_ < text_.size() && std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos)
      ++position_;
  }
  std::int64_t number() {
    skip_space();
    std::int64_t value = 0;
    const char* first = text_.data() + position_;
    const auto [last, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) fail("expected a size");
    position_ += static_cast<std::size_t>(last - first);
    if (position_ < text_.size() && text_[position_] == 'L') ++position_;  // Python 2 writes 3L
    return value;
  }

  std::string_view text_;
  const std::string& file_;
  std::uint64_t base_;
  std::size_t position_ = 0;
};

// "<f4", "|b1", ">i8": byte order, kind, bytes.
std::optional<Element> element_of_descr(std::string_view descr) {
  if (descr.empty() || std::string_view("<>|=").find(descr[0]) == std::string_view::npos) return std::nullopt;
  const std::endian order = descr[0] == '<'   ? std::endian::little
                            : descr[0] == '>' ? std::endian::big
                                              : std::endian::native;
  return element_of(descr.substr(1), order);
}

Element read_element(Literal& literal) {
  if (literal.accept('[')) literal.fail("a structured array; only plain numbers are read");
  const std::string_view descr = literal.string();
  const auto element = element_of_descr(descr);
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

// The bytes before the array, as numpy.save writes them.
std::string header_of(const Tensor& tensor) {
  constexpr std::size_t kAlignment = 64, kGrowth = 21;  // NumPy leaves space for the digits of a longer first dimension
  const DType dtype = tensor.dtype();
  LOCKSTEP_CHECK(dtype != kBFloat16, "save_npy: {}; NumPy has no bf16: convert it with to(kFloat32)", describe(tensor));
  const char kind = dtype == kBool ? 'b' : dtype == kUInt8 ? 'u' : lockstep::is_floating_point(dtype) ? 'f' : 'i';
  const std::size_t item = item_size(dtype);
  std::string text =
      fmt::format("{{'descr': '{}{}{}', 'fortran_order': False, 'shape': ({}{}), }}", item > 1 ? '<' : '|', kind, item,
                  fmt::join(tensor.shape(), ", "), tensor.dim() == 1 ? "," : "");
  if (tensor.dim() > 0) text.append(kGrowth - std::to_string(tensor.size(0)).size(), ' ');
  const std::size_t start = kMagic.size() + 4;
  text.append(kAlignment - (start + text.size() + 1) % kAlignment, ' ');
  text += '\n';
  const auto byte = [&](int shift) { return static_cast<char>(text.size() >> shift & 0xff); };
  return std::string(kMagic) + '\1' + '\0' + byte(0) + byte(8) + text;
}

}  // namespace

Tensor read_npy(const ByteStream& stream) {
  const NpyHeader header = read_header(stream);
  const auto bytes = array_bytes(header.shape, header.element.bytes, limits::kArrayBytes);
  LOCKSTEP_CHECK_IO(bytes, "{}: npy header: shape {} is more than the {} bytes an array may have", stream.name,
                    header.shape.to_string(), limits::kArrayBytes);
  // Checked before anything is allocated.
  const std::uint64_t held = stream.size - header.data_offset;
  LOCKSTEP_CHECK_IO(*bytes == held, "{}: byte {}: shape {} of {} bytes each needs {} bytes, the file has {}",
                    stream.name, header.data_offset, header.shape.to_string(), header.element.bytes, *bytes, held);
  return read_elements(stream, header.element, header.shape, header.fortran_order);
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

void save_npy(const Tensor& tensor, const std::string& path) {
  static_assert(std::endian::native == std::endian::little, "arrays are written in native byte order");
  const std::string header = data::header_of(tensor);
  const Tensor host = raw::contiguous(raw::to(tensor, Device()));
  AtomicFile file(path);
  file.write(header);
  file.write(std::span(static_cast<const std::byte*>(host.raw_data()),
                       static_cast<std::size_t>(host.numel()) * item_size(host.dtype())));
  file.commit();
}

}  // namespace lockstep
