// Reads safetensors files, whole or in parts.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/nn/files/safetensors_internal.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep {
namespace nn::safetensors {
namespace {

// Rejects the pointer that a clone without Git LFS has in the place of a file, and PyTorch's own files: a zip archive, or
// before 1.6 a bare pickle. Both can run code when loaded. A safetensors file may start with the same bytes as these, if
// they are the length of its header.
void reject_other_formats(const ByteSource& source) {
  constexpr std::string_view kPointer = "version https://git-lfs";
  std::byte start[kPointer.size()] = {};
  source.read_at(0, std::span(start).first(std::min<std::uint64_t>(source.size(), sizeof(start))));
  const auto header_bytes = ByteReader(start, source.name()).little<std::uint64_t>("header length");
  if (header_bytes <= limits::kSafetensorsHeaderBytes && start[kTextOffset] == std::byte{'{'}) return;
  const std::string_view text(reinterpret_cast<const char*>(start), sizeof(start));
  LOCKSTEP_CHECK_IO(text != kPointer, "{}: this is a Git LFS pointer, not the file; fetch the file: git lfs pull",
                    source.name());
  const bool is_pickle = text[0] == '\x80' && text[1] >= 2 && text[1] <= 5;  // text[1] is the protocol
  if (!is_pickle && !text.starts_with("PK\x03\x04")) return;
  throw IoError(
      fmt::format("{}: this is a PyTorch pickle, not safetensors; convert it (the script is also in share/lockstep):\n"
                  "python3 scripts/convert_checkpoint.py IN.pt OUT.safetensors",
                  source.name()));
}

// Rejects bool bytes other than 0 and 1: reading such a bool is undefined behaviour. The tensor has the elements of
// `part`.
void check_bools(const Tensor& tensor, const Entry& entry, const TensorPart& part, const std::string& file) {
  const auto bytes = bytes_of(tensor);
  const auto bad = std::find_if(bytes.begin(), bytes.end(), [](std::byte value) { return value > std::byte{1}; });
  LOCKSTEP_CHECK_IO(bad == bytes.end(), "{}: tensor {}: element {} is the byte {}, a bool is 0 or 1", file,
                    quoted_name(entry.name), part.at(bad - bytes.begin()), static_cast<int>(*bad));
}

}  // namespace

std::string checksum_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

Reader::Reader(const ByteSource& source) : source_(source) {
  reject_other_formats(source);
  header_ = read_header(source, source.size());
  if (header_.metadata_left_out > 0)
    warn("load",
         fmt::format("{}: {} metadata entries are left out; {} are read, with texts of up to {} bytes", source.name(),
                     header_.metadata_left_out, limits::kSafetensorsMetadata, limits::kSafetensorsTextBytes));
  if (auto node = header_.metadata.extract(kChecksumKey)) checksum_ = std::move(node.mapped());
}

std::uint64_t Reader::header_hash() const {
  std::byte piece[16 << 10];
  Hash hash;
  for (std::uint64_t offset = 0; offset < header_.payload; offset += sizeof(piece)) {
    const auto bytes = std::span(piece).first(std::min<std::uint64_t>(header_.payload - offset, sizeof(piece)));
    source_.read_at(offset, bytes);
    hash.update(bytes);
  }
  return hash.digest();
}

// read_header has checked that every tensor lies within the file.
void Reader::fill(const Entry& entry, const TensorPart& part, const Tensor& tensor) const {
  const auto bytes = bytes_of(tensor);
  const std::uint64_t item = item_size(entry.dtype);
  std::uint64_t at = 0;
  for (std::int64_t k = 0; k < part.runs(); ++k) {
    const auto [first, count] = part.run_at(k);
    const std::uint64_t length = static_cast<std::uint64_t>(count) * item;
    source_.read_at(header_.payload + entry.begin + static_cast<std::uint64_t>(first) * item,
                    bytes.subspan(at, length));
    at += length;
  }
  if (entry.dtype == kBool) check_bools(tensor, entry, part, source_.name());
}

std::string Reader::unsupported(const Entry& entry) const {
  return fmt::format("{}: tensor {}: dtype {} is not supported; Lockstep has F64 F32 F16 BF16 I64 I32 U8 BOOL",
                     source_.name(), quoted_name(entry.name), entry.unsupported);
}

void Reader::require_supported(const Entry& entry) const {
  LOCKSTEP_CHECK_IO(entry.unsupported.empty(), "{}", unsupported(entry));
}

void Reader::check_part(const Entry& entry, const TensorPart& part) const {
  require_supported(entry);
  const auto numel = static_cast<std::int64_t>((entry.end - entry.begin) / item_size(entry.dtype));
  LOCKSTEP_CHECK(part.fits(numel), "{}: tensor {}: elements {} are outside [0, {})", source_.name(),
                 quoted_name(entry.name), part.to_string(), numel);
}

bool Reader::read_into(const Entry& entry, const TensorPart& part, const Tensor& tensor) const {
  check_part(entry, part);
  if (tensor.dtype() != entry.dtype || !tensor.device().is_cpu() || !tensor.is_contiguous()) return false;
  fill(entry, part, tensor);
  return true;
}

Tensor Reader::read(const Entry& entry, const TensorPart& part) const {
  check_part(entry, part);
  const Tensor tensor = raw::empty({part.numel}, {.dtype = entry.dtype});
  fill(entry, part, tensor);
  return tensor;
}

Tensor Reader::read(const Entry& entry) const {
  require_supported(entry);
  const Tensor tensor = raw::empty(entry.shape, {.dtype = entry.dtype});
  fill(entry, TensorPart::whole(entry.shape), tensor);
  return tensor;
}

Tensor Reader::map(const Entry& entry, const std::shared_ptr<std::byte>& mapped) const {
  require_supported(entry);
  std::byte* const data = mapped.get() + header_.payload + entry.begin;
  if (entry.begin == entry.end || reinterpret_cast<std::uintptr_t>(data) % item_size(entry.dtype) != 0)
    return read(entry);
  const Tensor tensor = raw::wrap_memory(data, entry.shape, entry.dtype, Device(), mapped);
  if (entry.dtype == kBool) check_bools(tensor, entry, TensorPart::whole(entry.shape), source_.name());
  return tensor;
}

bool Reader::supports(const char* op, const Entry& entry) const {
  if (!entry.unsupported.empty()) warn(op, unsupported(entry) + "; only the others are loaded");
  return entry.unsupported.empty();
}

StateDict Reader::read_all() const {
  StateDict dict;
  Hash hash;
  bool is_complete = true;
  for (const Entry& entry : header_.entries) {
    if (!supports("load", entry)) {
      is_complete = false;
      continue;
    }
    Tensor tensor = read(entry);
    hash.update(bytes_of(tensor));
    dict.insert(entry.name, std::move(tensor));
  }
  if (is_complete) check(hash.digest());  // files with a checksum are ours, and so are complete
  return dict;
}

void Reader::check(std::uint64_t checksum) const {
  const std::string found = checksum_text(checksum);
  LOCKSTEP_CHECK_IO(checksum_.empty() || checksum_ == found,
                    "{}: the payload's checksum is {}, the header says {}: the file is damaged", source_.name(), found,
                    lockstep::in_quotes(checksum_));
}

PayloadReader::PayloadReader(const ByteSource& source, std::uint64_t payload)
    : source_(source), offset_(payload), hash_(std::make_unique<Hash>()) {}
PayloadReader::~PayloadReader() = default;
std::uint64_t PayloadReader::checksum() const { return hash_->digest(); }

bool PayloadReader::read(std::uint64_t most) {
  constexpr std::uint64_t kPiece = 1 << 20;
  std::vector<std::byte> piece(std::min(kPiece, source_.size() - offset_));
  for (const std::uint64_t end = offset_ + std::min(most, source_.size() - offset_); offset_ < end;) {
    const auto bytes = std::span(piece).first(std::min<std::uint64_t>(end - offset_, piece.size()));
    source_.read_at(offset_, bytes);
    hash_->update(bytes);
    offset_ += bytes.size();
  }
  return offset_ < source_.size();
}

void verify(const ByteSource& source, const Reader& reader) {
  if (!reader.has_checksum()) return;
  PayloadReader payload(source, reader.payload());
  while (payload.read(std::uint64_t{1} << 30)) {
  }
  reader.check(payload.checksum());
}

}  // namespace nn::safetensors

namespace {

StateDict read(const ByteSource& source, Metadata* metadata) {
  const nn::safetensors::Reader reader(source);
  StateDict dict = reader.read_all();
  if (metadata) *metadata = reader.metadata();
  return dict;
}

}  // namespace

StateDict load(const std::string& path, Metadata* metadata) { return read(InputFile(path), metadata); }

StateDict parse_safetensors(std::span<const std::byte> bytes, const std::string& name, Metadata* metadata) {
  return read(MemorySource(bytes, name), metadata);
}

}  // namespace lockstep
