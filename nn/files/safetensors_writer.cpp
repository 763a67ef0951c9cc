// Writes safetensors files, whole or in parts.
#include <algorithm>
#include <bit>
#include <cstring>

#include <nlohmann/json.hpp>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/files/safetensors_internal.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep {
namespace nn::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written in native byte order");

std::size_t rank_of(DType dtype) {
  std::size_t rank = 0;
  while (kDTypes[rank].dtype != dtype) ++rank;
  return rank;
}

void check(const Piece& piece) {
  LOCKSTEP_CHECK(piece.part.defined(), "save: the entry {} is an undefined tensor", lockstep::in_quotes(piece.name));
  LOCKSTEP_CHECK(piece.name != kMetadataKey, "save: the name {} is reserved by the format",
                 lockstep::in_quotes(piece.name));
  LOCKSTEP_CHECK(piece.place.fits(piece.shape.numel()), "save: the entry {}: elements {} of a tensor of shape {}",
                 lockstep::in_quotes(piece.name), piece.place.to_string(), piece.shape.to_string());
  LOCKSTEP_CHECK(piece.place.numel == piece.part.numel(), "save: the entry {}: {} elements for a part of {}",
                 lockstep::in_quotes(piece.name), piece.part.numel(), piece.place.numel);
}

// Checks a piece of the same tensor as the one before.
void check_same_tensor(const Piece& first, const Piece& next) {
  LOCKSTEP_CHECK(first.shape == next.shape && first.part.dtype() == next.part.dtype(),
                 "save: the entry {} has parts of a tensor {} {} and of a tensor {} {}",
                 lockstep::in_quotes(first.name), first.shape.to_string(), lockstep::name(first.part.dtype()),
                 next.shape.to_string(), lockstep::name(next.part.dtype()));
}

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument(fmt::format("save: {} is not UTF-8", lockstep::in_quotes(text)));
  }
}

// The elements of `tensor` as a contiguous 1-D tensor; copied only if needed.
Tensor flat(const Tensor& tensor) { return raw::view(raw::contiguous(tensor), {tensor.numel()}); }

}  // namespace

// Orders by alignment, the largest first, so that every tensor starts aligned; then by name. The safetensors library
// uses the same order.
Layout::Layout(std::vector<Piece> pieces, const Metadata& metadata) : pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) check(piece);
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    const std::size_t rank_a = rank_of(a.part.dtype()), rank_b = rank_of(b.part.dtype());
    return rank_a != rank_b ? rank_a < rank_b : a.name < b.name;
  });
  write_header(metadata);
  for (std::uint64_t& offset : offsets_) offset += payload();
  try {
    const Header header = read_header(MemorySource(std::as_bytes(std::span(header_)), "save"), file_bytes());
    LOCKSTEP_CHECK(header.metadata_left_out == 0,
                   "save: {} metadata entries are beyond the limits of {} entries with texts of {} bytes",
                   header.metadata_left_out, limits::kSafetensorsMetadata, limits::kSafetensorsTextBytes);
  } catch (const IoError& error) {
    throw InvalidArgument(error.what());
  }
}

// The header, preceded by its length. Offsets count from the start of the payload.
void Layout::write_header(const Metadata& metadata) {
  Metadata all = metadata;
  all.try_emplace("format", "pt");  // Transformers refuses files without it
  all[kChecksumKey] = checksum_text(0);
  header_.assign(kTextOffset, '\0');
  header_ += fmt::format("{{{}:{{", json_string(std::string(kMetadataKey)));
  for (const auto& [key, value] : all) {
    header_ += json_string(key) + ':';
    if (key == kChecksumKey) checksum_at_ = header_.size() + 1;  // after the quote
    header_ += json_string(value) + ',';
  }
  header_.back() = '}';  // replaces the last comma; the checksum is always present
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (i > 0 && piece.name == pieces_[i - 1].name) {
      check_same_tensor(pieces_[i - 1], piece);
      offsets_.push_back(offsets_.back());
      continue;
    }
    const DType dtype = piece.part.dtype();
    tensors_.push_back(i);
    offsets_.push_back(end);
    end += static_cast<std::uint64_t>(piece.shape.numel()) * item_size(dtype);
    header_ += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json_string(piece.name),
                           kDTypes[rank_of(dtype)].name, fmt::join(piece.shape, ","), offsets_.back(), end);
  }
  offsets_.push_back(end);
  header_ += '}';
  header_.append((8 - header_.size() % 8) % 8, ' ');  // the payload starts aligned
  const std::uint64_t length = header_.size() - kTextOffset;
  std::memcpy(header_.data(), &length, kTextOffset);
}

std::string Layout::header(std::uint64_t checksum) const {
  const std::string text = checksum_text(checksum);
  return std::string(header_).replace(checksum_at_, text.size(), text);
}

PartWriter::PartWriter(const Layout& layout, TemporaryFile& file)
    : layout_(layout), file_(file), hash_(std::make_unique<Hash>()) {}
PartWriter::~PartWriter() = default;
std::uint64_t PartWriter::checksum() const { return hash_->digest(); }

bool PartWriter::write(std::uint64_t most) {
  constexpr std::uint64_t kPiece = 16 << 20;  // bytes copied from a GPU at once
  const std::vector<Piece>& pieces = layout_.pieces();
  for (std::uint64_t written = 0; next_ < pieces.size() && written < most;) {
    const Piece& piece = pieces[next_];
    if (!flat_.defined()) flat_ = flat(piece.part);
    const std::uint64_t item = item_size(flat_.dtype());
    const std::int64_t end = std::min(flat_.numel(), done_ + static_cast<std::int64_t>(kPiece / item));
    const Tensor host = raw::to(raw::slice(flat_, 0, done_, end, 1), Device());
    const auto bytes = bytes_of(host);
    const TensorPart place = piece.place.narrow(done_, end - done_);
    std::uint64_t at = 0;
    for (std::int64_t k = 0; k < place.runs(); ++k) {
      const auto [first, count] = place.run_at(k);
      const std::uint64_t length = static_cast<std::uint64_t>(count) * item;
      file_.write_at(layout_.offset(next_) + static_cast<std::uint64_t>(first) * item, bytes.subspan(at, length));
      at += length;
    }
    hash_->update(bytes);
    written += bytes.size();
    done_ = end;
    if (done_ < flat_.numel()) continue;
    flat_ = Tensor();
    done_ = 0;
    ++next_;
  }
  return next_ < pieces.size();
}

void write(const StateDict& dict, const Metadata& metadata, AtomicFile& file) {
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : dict) {
    const Shape shape = tensor.defined() ? tensor.shape() : Shape();
    pieces.push_back({name, tensor, shape, TensorPart::whole(shape)});
  }
  const Layout layout(std::move(pieces), metadata);
  file.reserve(layout.file_bytes());
  PartWriter writer(layout, file);
  writer.write(layout.file_bytes());
  file.write(layout.header(writer.checksum()));
}

}  // namespace nn::safetensors

void save(const StateDict& dict, const std::string& path, const Metadata& metadata) {
  AtomicFile file(path);
  nn::safetensors::write(dict, metadata, file);
  file.commit();
}

}  // namespace lockstep
