// Declarations shared by the safetensors reader and writer. Not installed.
//
// A file is N (u64, little-endian), N bytes of JSON, then the payload: the tensors' bytes, one after another.
// The JSON maps a name to {"dtype", "shape", "data_offsets": [begin, end]}, counted from the start of the payload, and
// "__metadata__" to a map from string to string.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/nn/files/safetensors.h"
#include "lockstep/tensor/tensor_part.h"

namespace lockstep::nn {
class Hash;
}

namespace lockstep::nn::safetensors {

inline constexpr std::uint64_t kTextOffset = 8;  // offset of the JSON, after its length
inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr const char* kChecksumKey = "lockstep.xxh3";  // XXH3 of the payload, 16 hexadecimal digits

struct DTypeName {
  std::string_view name;
  DType dtype;
};
// In the order in which writers place them: largest alignment first.
inline constexpr DTypeName kDTypes[] = {{"I64", kInt64},     {"F64", kFloat64}, {"F32", kFloat32}, {"I32", kInt32},
                                        {"BF16", kBFloat16}, {"F16", kFloat16}, {"U8", kUInt8},    {"BOOL", kBool}};

struct Entry {
  std::string name;
  DType dtype = kFloat32;
  std::string unsupported;  // name of a dtype that Lockstep does not have; empty: dtype
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // offsets in the payload
};

struct Header {
  std::vector<Entry> entries;  // in the order of their data
  Metadata metadata;
  std::uint64_t metadata_left_out = 0;  // entries beyond the limits
  std::uint64_t payload = 0;            // offset of the payload in the file
};

// Parses the header of a file of `file_bytes` bytes and checks every rule of the format that does not need the
// payload. `source` need not contain the payload. Throws IoError.
Header read_header(const ByteSource& source, std::uint64_t file_bytes);

// A checksum as the header holds it.
std::string checksum_text(std::uint64_t hash);

// A part, which this process writes, of a tensor of a file. The tensor `part` has the elements of `place` in row-major
// order, and any strides, shape and device. A process may have several pieces of a tensor: with equal names.
struct Piece {
  std::string name;
  Tensor part;
  Shape shape;  // of the whole tensor
  TensorPart place;
};

// The layout of a file that is written: its header, and the place of each tensor. Processes with pieces of the same
// names, dtypes and shapes compute the same layout, whatever their number of pieces of a tensor.
class Layout {
 public:
  // Throws InvalidArgument for a piece that cannot be written (undefined tensor, name that is not UTF-8, part beyond the
  // whole tensor), for pieces of one name with different shapes or dtypes, and if `load` would reject the header.
  Layout(std::vector<Piece> pieces, const Metadata& metadata);

  const std::vector<Piece>& pieces() const { return pieces_; }               // those of a tensor one after another
  const std::vector<std::size_t>& tensors() const { return tensors_; }       // each tensor's first piece, in file order
  std::uint64_t offset(std::size_t piece) const { return offsets_[piece]; }  // of the whole tensor, in the file
  std::uint64_t payload() const { return header_.size(); }                   // offset of the payload in the file
  std::uint64_t file_bytes() const { return offsets_.back(); }
  // The file's first bytes, with the checksum of the payload.
  std::string header(std::uint64_t checksum) const;

 private:
  void write_header(const Metadata& metadata);

  std::vector<Piece> pieces_;
  std::vector<std::size_t> tensors_;
  std::vector<std::uint64_t> offsets_;  // of each piece's tensor and, at the end, of the end of the file
  std::string header_;                  // with a checksum of zeros
  std::size_t checksum_at_ = 0;         // position in header_
};

// Writes this process's parts of a file, in order.
class PartWriter {
 public:
  // Both must outlive this object.
  PartWriter(const Layout& layout, TemporaryFile& file);
  ~PartWriter();
  // Writes about `most` further bytes. Returns false if no part is left.
  bool write(std::uint64_t most);
  // XXH3 of the bytes so far: the payload's checksum once this process has written all of it.
  std::uint64_t checksum() const;

 private:
  const Layout& layout_;
  TemporaryFile& file_;
  std::unique_ptr<Hash> hash_;
  std::size_t next_ = 0;   // piece
  Tensor flat_;            // its part, contiguous and 1-D; undefined before its first elements are written
  std::int64_t done_ = 0;  // elements of `flat_` that are written
};

// Computes the checksum of a file's payload.
class PayloadReader {
 public:
  // `source` must outlive this object.
  PayloadReader(const ByteSource& source, std::uint64_t payload);
  ~PayloadReader();
  // Reads at most `most` further bytes. Returns false at the end of the file.
  bool read(std::uint64_t most);
  std::uint64_t checksum() const;

 private:
  const ByteSource& source_;
  std::uint64_t offset_;
  std::unique_ptr<Hash> hash_;
};

// A file whose header is in memory. Tensors, or parts of them, are read on demand.
class Reader {
 public:
  // Reads the header. `source` must outlive this object. Throws IoError if the header violates the format.
  explicit Reader(const ByteSource& source);

  const std::vector<Entry>& entries() const { return header_.entries; }  // in the order of their data
  const Metadata& metadata() const { return header_.metadata; }          // without the checksum
  std::uint64_t payload() const { return header_.payload; }
  // XXH3 of the header, which includes the checksum of the payload.
  std::uint64_t header_hash() const;

  // Throws IoError unless Lockstep has the tensor's dtype.
  void require_supported(const Entry& entry) const;
  // The elements of a part of a tensor, as a 1-D tensor on the CPU. Throws IoError, also for an unsupported dtype.
  Tensor read(const Entry& entry, const TensorPart& part) const;
  Tensor read(const Entry& entry) const;  // the whole tensor
  // The whole tensor in `mapped`, the bytes of the source, whose memory it shares; a copy if it is not aligned.
  Tensor map(const Entry& entry, const std::shared_ptr<std::byte>& mapped) const;
  // Reads the part into `tensor`, which has its number of elements. Returns false, and reads nothing, unless the tensor
  // is contiguous, on the CPU, and of the entry's dtype.
  bool read_into(const Entry& entry, const TensorPart& part, const Tensor& tensor) const;
  // Whether Lockstep has the tensor's dtype; if not, warns that `op` leaves the tensor out.
  bool supports(const char* op, const Entry& entry) const;
  // All tensors but those of unsupported dtypes, with a warning. Verifies the checksum.
  StateDict read_all() const;
  bool has_checksum() const { return !checksum_.empty(); }
  // Throws IoError if the file has a checksum, and it is not `checksum`.
  void check(std::uint64_t checksum) const;

 private:
  void fill(const Entry& entry, const TensorPart& part, const Tensor& tensor) const;
  std::string unsupported(const Entry& entry) const;  // the error of require_supported
  void check_part(const Entry& entry, const TensorPart& part) const;

  const ByteSource& source_;
  Header header_;
  std::string checksum_;  // empty: the file has none
};

// Throws IoError if the file has a checksum that is not that of its payload, which is read.
void verify(const ByteSource& source, const Reader& reader);

// Writes the whole file, without the commit.
void write(const StateDict& dict, const Metadata& metadata, AtomicFile& file);

}  // namespace lockstep::nn::safetensors
