// Finds the tensors of files that fit a model, and reads them.
#include "lockstep/nn/files/weights.h"

#include <algorithm>
#include <map>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/replace_elements_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

// The elements that are read at a time where they cannot be read into their place: of another dtype, or transposed.
std::int64_t piece_elements(const safetensors::Entry& entry) {
  constexpr std::int64_t kBytes = 1 << 20;
  return kBytes / static_cast<std::int64_t>(item_size(entry.dtype));
}

// The part of the transpose of a matrix of a file, as a 1-D tensor.
Tensor read_transposed(const safetensors::Reader& reader, const safetensors::Entry& entry, const TensorPart& part) {
  const std::int64_t rows = entry.shape[0], columns = entry.shape[1];
  const std::int64_t left = part.at(0) / rows, width = part.at(part.numel - 1) / rows + 1 - left;
  const TensorPart band = {.first = left, .run = width, .stride = columns, .numel = rows * width};
  const Tensor transposed = raw::contiguous(raw::transpose(raw::view(reader.read(entry, band), {rows, width}), 0, 1));
  const Tensor flat = raw::view(transposed, {transposed.numel()});
  if (part.is_consecutive())
    return raw::slice(flat, 0, part.at(0) - left * rows, part.at(part.numel - 1) + 1 - left * rows, 1);
  const Tensor elements = raw::empty({part.numel}, flat.options());
  std::int64_t at = 0;
  for (std::int64_t k = 0; k < part.runs(); ++k) {
    const auto [first, count] = part.run_at(k);
    const std::int64_t from = first - left * rows;
    raw::copy(raw::slice(flat, 0, from, from + count, 1), raw::slice(elements, 0, at, at + count, 1));
    at += count;
  }
  return elements;
}

Tensor read_elements(const WeightFiles::Tensor& tensor, bool is_transposed, const TensorPart& part) {
  const safetensors::Reader& reader = tensor.file->reader;
  return is_transposed ? read_transposed(reader, *tensor.entry, part) : reader.read(*tensor.entry, part);
}

LoadCall call_of(const char* op, const WeightFiles& files, bool has_options) {
  return {.where = fmt::format("{}: {}: ", op, files.path()),
          .has_options = has_options,
          .advice = has_options ? "" : "\nload_weights loads such files with options: .rename, .transpose, .strict",
          .index = files.index()};
}

std::vector<WeightSource> sources_of(const WeightFiles& files) {
  std::vector<WeightSource> sources;
  for (const WeightFiles::Tensor& tensor : files.tensors())
    sources.push_back({.name = tensor.entry->name, .shape = tensor.entry->shape});
  for (const WeightFiles::Tensor& tensor : files.unlisted())
    sources.push_back({.name = tensor.entry->name, .shape = tensor.entry->shape, .is_listed = false});
  return sources;
}

}  // namespace

WeightLoad::WeightLoad(const char* op, const WeightFiles& files, const std::vector<WeightPart>& parts,
                       const std::set<std::string>& known, const LoadWeightsOptions* options)
    : files_(files),
      match_(call_of(op, files, options), sources_of(files), parts, known, options ? *options : LoadWeightsOptions()) {
  for (const WeightMatch::Match& each : match_.matches()) {
    const WeightFiles::Tensor& tensor = files.tensors()[each.source];
    tensor.file->reader.require_supported(*tensor.entry);
  }
  for (const WeightMatch::Tied& tied : match_.tied(parts)) {
    if (!are_equal(tied))
      throw_tied(call_of(op, files, options), files.tensors()[tied.first.source].entry->name,
                 files.tensors()[tied.second.source].entry->name);
  }
}

bool WeightLoad::are_equal(const WeightMatch::Tied& tied) const {
  const auto read = [&](const WeightMatch::Match& match, const TensorPart& part) {
    return read_elements(files_.tensors()[match.source], match.is_transposed, part);
  };
  const TensorPart& place = tied.part->place;
  const std::int64_t most = piece_elements(*files_.tensors()[tied.first.source].entry);
  for (std::int64_t from = 0; from < place.numel; from += most) {
    const TensorPart piece = place.narrow(from, std::min(most, place.numel - from));
    if (!same_values(read(tied.first, piece), read(tied.second, piece), tied.part->part.dtype())) return false;
  }
  return true;
}

void WeightLoad::read(const WeightMatch::Match& match, const WeightPart& to) const {
  const WeightFiles::Tensor& tensor = files_.tensors()[match.source];
  if (!match.is_transposed && tensor.file->reader.read_into(*tensor.entry, to.place, to.part)) return;
  if (!to.part.is_contiguous()) {
    raw::copy(raw::view(read_elements(tensor, match.is_transposed, to.place), to.part.shape()), to.part);
    return;
  }
  const Tensor flat = raw::view(to.part, {to.place.numel});
  const std::int64_t most = piece_elements(*tensor.entry);
  for (std::int64_t from = 0; from < to.place.numel; from += most) {
    const TensorPart piece = to.place.narrow(from, std::min(most, to.place.numel - from));
    raw::copy(read_elements(tensor, match.is_transposed, piece), raw::slice(flat, 0, from, from + piece.numel, 1));
  }
}

bool WeightLoad::read(const std::vector<WeightPart>& parts, std::uint64_t most) {
  const NoGradGuard no_grad;
  std::multimap<std::string_view, const WeightPart*> by_name;
  for (const WeightPart& part : parts) by_name.emplace(part.name, &part);
  for (std::uint64_t bytes = 0; next_ < match_.matches().size() && bytes < most; ++next_) {
    const WeightMatch::Match& match = match_.matches()[next_];
    const auto [first, last] = by_name.equal_range(match.name);
    for (auto each = first; each != last; ++each) {
      const WeightPart& to = *each->second;
      if (to.place.numel == 0) continue;
      bytes += static_cast<std::uint64_t>(to.place.numel) * item_size(files_.tensors()[match.source].entry->dtype);
      read(match, to);
    }
  }
  return next_ < match_.matches().size();
}

namespace {

std::vector<WeightPart> parts_of(const Module& module) {
  std::vector<WeightPart> parts;
  for (const ListedTensor& each : listed_tensors(module))
    parts.push_back({.name = each.name,
                     .part = each.tensor,
                     .shape = each.tensor.shape(),
                     .place = TensorPart::whole(each.tensor.shape()),
                     .id = each.id});
  return parts;
}

// Gives deferred parameters storage, which those of the file fill, and the others' initial values.
void materialize_for(const Module& module, const std::vector<WeightPart>& parts, const WeightLoad& load) {
  std::set<const void*> read;
  for (const WeightPart& part : parts) {
    if (load.loads(part.name)) read.insert(part.id);
  }
  const NoGradGuard no_grad;
  for (const Parameter& parameter : module.parameters()) {
    const Tensor& tensor = parameter.master();
    if (!is_deferred(tensor)) continue;
    replace_elements(tensor, read.contains(parameter.id())
                                 ? raw::empty(tensor.shape(), {.dtype = tensor.dtype()})
                                 : initial_values(tensor, TensorPart::whole(tensor.shape())).view(tensor.shape()));
  }
}

}  // namespace

LoadWeightsResult load_weights(Module& module, const std::string& path, const LoadWeightsOptions& options) {
  refuse_parts("load_weights", module.parameters(), "load with parallel::load_weights");
  return load_weights("load_weights", module, WeightFiles(path), &options);
}

LoadWeightsResult load_weights(const char* op, Module& module, const WeightFiles& files,
                               const LoadWeightsOptions* options) {
  std::vector<WeightPart> parts = parts_of(module);
  WeightLoad load(op, files, parts, {}, options);
  for (const auto& file : files.files()) safetensors::verify(file->source, file->reader);
  materialize_for(module, parts, load);
  parts = parts_of(module);
  while (load.read(parts, ~std::uint64_t{0})) {
  }
  return load.result();
}

}  // namespace lockstep::nn
