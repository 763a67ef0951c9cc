// The IDX format: two zero bytes, a type, the number of dimensions, each size as a big-endian u32, then the elements,
// big-endian, row-major (http://yann.lecun.com/exdb/mnist/).
#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/data/elements_internal.h"
#include "lockstep/data/inflate_internal.h"
#include "lockstep/data/readers.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMaxHeaderBytes = 4 + 4 * kMaxDims;

struct Header {
  Element element;
  Shape shape;
  std::uint64_t bytes;       // size of the header
  std::uint64_t data_bytes;  // size of the data after the header
};

Element element_of_type(std::uint8_t type, const ByteReader& reader) {
  struct Known {
    std::uint8_t type;
    std::string_view code;
  };
  static constexpr Known kKnown[] = {{0x08, "u1"}, {0x09, "i1"}, {0x0b, "i2"},
                                     {0x0c, "i4"}, {0x0d, "f4"}, {0x0e, "f8"}};
  for (const Known& known : kKnown) {
    if (known.type == type) return *element_of(known.code, std::endian::big);
  }
  reader.fail(fmt::format(
      "unknown IDX type 0x{:02x}, expected 08 (u8), 09 (i8), 0b (i16), 0c (i32), 0d (f32) or 0e (f64)", type));
}

// `start` holds the first kMaxHeaderBytes bytes of the file, or the whole file if it is shorter.
Header parse_header(std::span<const std::byte> start, const std::string& name) {
  ByteReader reader(start, name);
  if (reader.big<std::uint16_t>("IDX magic") != 0)
    reader.fail("not an IDX file: it does not begin with two zero bytes");
  Header header;
  header.element = element_of_type(reader.big<std::uint8_t>("IDX type"), reader);
  const auto dims = reader.big<std::uint8_t>("IDX number of dimensions");
  if (dims < 1 || dims > kMaxDims) reader.fail(fmt::format("{} dimensions, expected 1 to {}", dims, kMaxDims));
  for (int i = 0; i < dims; ++i) header.shape.push_back(reader.big<std::uint32_t>("IDX size"));
  const auto bytes = array_bytes(header.shape, header.element.bytes, limits::kArrayBytes);
  if (!bytes) {
    reader.fail(fmt::format("shape {} is more than the {} bytes an array may have", header.shape.to_string(),
                            limits::kArrayBytes));
  }
  header.data_bytes = *bytes;
  header.bytes = reader.offset();
  return header;
}

[[noreturn]] void fail_size(const std::string& name, const Header& header, const std::string& found) {
  throw IoError(fmt::format("{}: byte {}: shape {} needs {} bytes of data, {}", name, header.bytes,
                            header.shape.to_string(), header.data_bytes, found));
}

Tensor read_data(const Header& header, const std::string& name, FunctionRef<void(std::span<std::byte>)> read) {
  return read_elements({.size = header.data_bytes, .name = name, .read = read}, header.element, header.shape, false);
}

Tensor read_plain(const ByteSource& source) {
  std::vector<std::byte> start(std::min<std::uint64_t>(source.size(), kMaxHeaderBytes));
  source.read_at(0, start);
  const Header header = parse_header(start, source.name());
  const std::uint64_t held = source.size() - header.bytes;
  if (held != header.data_bytes) fail_size(source.name(), header, fmt::format("the file has {}", held));
  std::uint64_t offset = header.bytes;
  return read_data(header, source.name(), [&](std::span<std::byte> out) {
    source.read_at(offset, out);
    offset += out.size();
  });
}

// Decompresses twice, the first time only to count, so that the tensor is allocated only if the file has all its
// bytes.
Tensor read_gzip(std::span<const std::byte> compressed, const std::string& name) {
  Inflater inflater(compressed, Compression::kGzip, name);
  std::vector<std::byte> chunk(64 << 10);
  std::uint64_t held = inflater.read(std::span(chunk).first(kMaxHeaderBytes));
  const Header header = parse_header(std::span(chunk).first(held), name);
  if (header.data_bytes > limits::kInflatedBytes || header.data_bytes / limits::kDeflateRatio > compressed.size()) {
    fail_size(
        name, header,
        fmt::format("{} compressed bytes cannot give that (limit: {})", compressed.size(), limits::kInflatedBytes));
  }
  held -= header.bytes;
  for (std::size_t count = 1; count > 0 && held <= header.data_bytes; held += count) count = inflater.read(chunk);
  if (held > header.data_bytes) fail_size(name, header, "the file decompresses to more");
  if (held < header.data_bytes) fail_size(name, header, fmt::format("the file decompresses to {}", held));
  inflater.rewind();
  inflater.read(std::span(chunk).first(header.bytes));
  return read_data(header, name, [&](std::span<std::byte> out) { inflater.read(out); });
}

Tensor read_source(const ByteSource& source) {
  std::array<std::byte, 2> magic = {};
  if (source.size() >= magic.size()) source.read_at(0, magic);
  if (is_gzip(magic)) return read_gzip(read_all(source, limits::kCompressedBytes), source.name());
  return read_plain(source);
}

}  // namespace

Tensor read_idx(const std::string& path) { return read_source(InputFile(path)); }

Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name) {
  return read_source(MemorySource(bytes, name));
}

IdxDataset::IdxDataset(const std::string& images, const std::string& labels, const IdxOptions& options)
    : IdxDataset(read_idx(images), read_idx(labels), options) {}

IdxDataset::IdxDataset(const Tensor& images, const Tensor& labels, const IdxOptions& options) {
  LOCKSTEP_CHECK(images.dtype() == kUInt8 && images.dim() >= 2,
                 "IdxDataset: images must be u8 of at least 2 dimensions, got {}", describe(images));
  LOCKSTEP_CHECK(labels.dim() == 1 && is_integer(labels.dtype()),
                 "IdxDataset: labels must be integers of 1 dimension, got {}", describe(labels));
  LOCKSTEP_CHECK(images.size(0) == labels.size(0),
                 "IdxDataset: expected as many images as labels: images are {}, labels are {}", describe(images),
                 describe(labels));
  LOCKSTEP_CHECK(images.device() == labels.device(), "IdxDataset: devices differ: images are {}, labels are {}",
                 describe(images), describe(labels));
  LOCKSTEP_CHECK(options.std > 0, "IdxDataset: .std is {}, it must be positive", options.std);
  images_ = raw::contiguous(images);
  labels_ = raw::contiguous(raw::to(labels, kInt64));
  full_scale_ = raw::full({}, 255.0f, {.device = images.device()});
  if (options.mean == 0 && options.std == 1) return;
  mean_ = raw::full({}, options.mean, {.device = images.device()});
  deviation_ = raw::full({}, options.std, {.device = images.device()});
}

Example IdxDataset::get(std::int64_t index) const {
  const Example batch = get_batch({&index, 1});
  return {raw::select(batch.input, 0, 0), raw::select(batch.target, 0, 0)};
}

// Computes in f32 and in the order of PyTorch's ToTensor and Normalize, so that the bits are equal.
Example IdxDataset::get_batch(std::span<const std::int64_t> rows) const {
  detail::check_rows("IdxDataset", rows, size());
  const Tensor index = detail::row_index(rows, images_.device());
  const Tensor pixels = raw::to(raw::index_select(images_, 0, index), kFloat32);  // (batch, height, width)
  raw::div_(pixels, full_scale_);
  if (mean_.defined()) {
    raw::add_(pixels, mean_, -1);
    raw::div_(pixels, deviation_);
  }
  return {pixels, raw::index_select(labels_, 0, index)};
}

}  // namespace lockstep::data
