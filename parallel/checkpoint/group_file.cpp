#include "lockstep/parallel/checkpoint/group_file_internal.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"

namespace lockstep::parallel {

namespace safetensors = nn::safetensors;

namespace {

std::int64_t text_hash(const std::string& text) {
  nn::Hash hash;
  hash.update(std::as_bytes(std::span(text)));
  return static_cast<std::int64_t>(hash.digest());
}

std::string tensor_text(const safetensors::Piece& piece) {
  return fmt::format("{} {} {}", in_quotes(piece.name), piece.shape.to_string(), name(piece.part.dtype()));
}

// Checks that all ranks have the same tensors and metadata.
void check_same_layout(const safetensors::Layout& layout, ProcessGroup* group) {
  const auto count = static_cast<std::int64_t>(layout.tensors().size());
  const Tensor headers = gather_numbers(group, {count, text_hash(layout.header(0))});
  const std::span<const std::int64_t> each = headers.span<std::int64_t>();
  bool is_same = true;
  for (std::size_t r = 1; r < each.size() / 2; ++r) {
    LOCKSTEP_CHECK(each[2 * r] == each[0],
                   "save_checkpoint: rank 0 has {} tensors to save, rank {} has {}\nPass the same parts on all ranks",
                   each[0], r, each[2 * r]);
    is_same = is_same && each[2 * r + 1] == each[1];
  }
  if (is_same) return;
  std::vector<std::int64_t> own;
  for (const std::size_t first : layout.tensors()) own.push_back(text_hash(tensor_text(layout.pieces()[first])));
  const Tensor tensors = gather_numbers(group, own);
  const std::span<const std::int64_t> all = tensors.span<std::int64_t>();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t rank = i / own.size(), tensor = i % own.size();
    LOCKSTEP_CHECK(all[i] == all[tensor],
                   "save_checkpoint: tensor {} of rank {} is not that of rank 0; this rank has {}\nPass the same parts "
                   "on all ranks",
                   tensor, rank, tensor_text(layout.pieces()[layout.tensors()[tensor]]));
  }
  throw InvalidArgument("save_checkpoint: ranks have different metadata");
}

// A part of the tensor number `tensor` of a layout, on a rank.
struct PartOfRank {
  std::size_t tensor, rank;
  TensorPart part;
};

// The parts of all ranks that have elements, those of a tensor one after another.
std::vector<PartOfRank> parts_of_all_ranks(const safetensors::Layout& layout, ProcessGroup* group) {
  constexpr std::size_t kFields = 6;
  std::vector<std::int64_t> own;
  std::int64_t tensor = -1;
  for (std::size_t p = 0; p < layout.pieces().size(); ++p) {
    if (p == 0 || layout.pieces()[p].name != layout.pieces()[p - 1].name) ++tensor;
    const TensorPart& part = layout.pieces()[p].place;
    if (part.numel != 0) own.insert(own.end(), {tensor, part.first, part.run, part.stride, part.begin, part.numel});
  }
  const Tensor counts = gather_numbers(group, {static_cast<std::int64_t>(own.size())});
  own.resize(static_cast<std::size_t>(std::ranges::max(counts.span<std::int64_t>())), 0);  // parts without elements
  std::vector<PartOfRank> parts;
  if (own.empty()) return parts;
  const Tensor gathered = gather_numbers(group, own);
  const std::span<const std::int64_t> all = gathered.span<std::int64_t>();
  for (std::size_t i = 0; i < all.size(); i += kFields) {
    const TensorPart part{all[i + 1], all[i + 2], all[i + 3], all[i + 4], all[i + 5]};
    if (part.numel != 0)
      parts.push_back({.tensor = static_cast<std::size_t>(all[i]), .rank = i / own.size(), .part = part});
  }
  std::ranges::stable_sort(parts, {}, &PartOfRank::tensor);
  return parts;
}

// Checks that the ranks' parts cover every tensor once. Parts without elements may be anywhere.
void check_coverage(const safetensors::Layout& layout, ProcessGroup* group) {
  const std::vector<PartOfRank> parts = parts_of_all_ranks(layout, group);
  auto next = parts.begin();
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const safetensors::Piece& piece = layout.pieces()[layout.tensors()[t]];
    std::vector<TensorPart::Run> runs;
    for (; next != parts.end() && next->tensor == t; ++next) {
      LOCKSTEP_CHECK(next->part.fits(piece.shape.numel()), "save_checkpoint: {}: rank {} has elements {}",
                     tensor_text(piece), next->rank, next->part.to_string());
      for (std::int64_t k = 0; k < next->part.runs(); ++k) runs.push_back(next->part.run_at(k));
    }
    std::ranges::sort(runs);
    std::int64_t end = 0;
    for (const auto& [first, count] : runs) {
      LOCKSTEP_CHECK(first == end, "save_checkpoint: {}: {} elements from {} on are on {}", tensor_text(piece),
                     std::max(first, end) - std::min(first, end), std::min(first, end),
                     first > end ? "no rank" : "several ranks");
      end = first + count;
    }
    LOCKSTEP_CHECK(end == piece.shape.numel(), "save_checkpoint: {}: {} elements from {} on are on no rank",
                   tensor_text(piece), piece.shape.numel() - end, end);
  }
}

bool has_elements(const safetensors::Layout& layout) {
  return std::ranges::any_of(layout.pieces(), [](const safetensors::Piece& piece) { return piece.part.numel() > 0; });
}

bool has_all(const safetensors::Layout& layout) {
  return std::ranges::all_of(layout.pieces(),
                             [](const safetensors::Piece& piece) { return piece.part.numel() == piece.shape.numel(); });
}

}  // namespace

void save_pieces(std::vector<safetensors::Piece> pieces, const Metadata& metadata, const std::string& path,
                 ProcessGroup* group, const FileSystemCalls& calls) {
  const bool is_first = !group || group->rank() == 0;
  std::optional<safetensors::Layout> layout;
  on_all_ranks(group, [&] { layout.emplace(std::move(pieces), metadata); });
  check_same_layout(*layout, group);
  check_coverage(*layout, group);

  std::unique_ptr<AtomicFile> whole;  // on rank 0
  std::string temporary;
  on_all_ranks(group, [&] {
    if (!is_first) return;
    whole = std::make_unique<AtomicFile>(path, calls);
    whole->reserve(layout->file_bytes());
    temporary = whole->temporary();
  });
  temporary = text_of_rank_0(group, temporary);

  std::unique_ptr<AtomicFilePart> part;  // on the other ranks that have elements
  on_all_ranks(group, [&] {
    if (!is_first && has_elements(*layout)) part = std::make_unique<AtomicFilePart>(path, temporary, calls);
  });
  TemporaryFile* const file = is_first ? static_cast<TemporaryFile*>(whole.get()) : part.get();
  std::optional<safetensors::PartWriter> writer;
  if (file) writer.emplace(*layout, *file);
  std::uint64_t checksum = 0;
  in_rounds(group, [&] {
    if (!writer) return false;
    const bool is_more = writer->write(kRoundBytes);
    if (group) file->sync();  // reports errors on the rank that wrote; and the last flush of rank 0 takes less time
    checksum = writer->checksum();
    return is_more;
  });

  std::optional<InputFile> written;
  std::optional<safetensors::PayloadReader> reader;
  in_rounds(group, [&] {
    if (!is_first || has_all(*layout)) return false;
    if (!written) reader.emplace(written.emplace(temporary), layout->payload());
    const bool is_more = reader->read(kRoundBytes);
    checksum = reader->checksum();
    return is_more;
  });
  on_all_ranks(group, [&] {
    if (!is_first) return;
    whole->write(layout->header(checksum));
    whole->commit();
  });
}

void check_file(const ByteSource& source, const safetensors::Reader& reader, ProcessGroup* group) {
  const Tensor headers = gather_numbers(group, {static_cast<std::int64_t>(reader.header_hash())});
  const std::span<const std::int64_t> each = headers.span<std::int64_t>();
  for (std::size_t r = 1; r < each.size(); ++r)
    LOCKSTEP_CHECK_IO(
        each[r] == each[0],
        "{}: rank {} reads another file than rank 0\nWait until the file is written, and give all ranks the "
        "same one",
        source.name(), r);
  if (!reader.has_checksum()) return;
  safetensors::PayloadReader payload(source, reader.payload());
  in_rounds(group, [&] {
    if (group && group->rank() != 0) return false;
    if (payload.read(kRoundBytes)) return true;
    reader.check(payload.checksum());
    return false;
  });
}

}  // namespace lockstep::parallel
