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

// The elements `place` of a contiguous tensor, in one dimension.
Tensor elements_at(const Tensor& whole, const TensorPart& place) {
  const Tensor flat = raw::view(whole, {whole.numel()}), part = raw::empty({place.numel}, whole.options());
  std::int64_t at = 0;
  for (std::int64_t k = 0; k < place.runs(); ++k) {
    const auto [first, count] = place.run_at(k);
    raw::copy(raw::slice(flat, 0, first, first + count, 1), raw::slice(part, 0, at, at + count, 1));
    at += count;
  }
  return part;
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
  const auto& [file, entry] = files_.tensors()[tied.first.source];
  const auto& [other_file, other] = files_.tensors()[tied.second.source];
  const DType dtype = tied.part->part.dtype();
  if (tied.first.is_transposed || tied.second.is_transposed) {
    const auto whole = [&](const WeightFiles::Tensor& tensor, bool is_transposed) {
      const Tensor read = tensor.file->reader.read(*tensor.entry);
      return is_transposed ? raw::transpose(read, 0, 1) : read;
    };
    return same_values(whole({file, entry}, tied.first.is_transposed),
                       whole({other_file, other}, tied.second.is_transposed), dtype);
  }
  constexpr std::int64_t kMost = 1 << 20;  // elements in memory
  for (std::int64_t from = 0; from < tied.part->place.numel; from += kMost) {
    const TensorPart piece = tied.part->place.narrow(from, std::min(kMost, tied.part->place.numel - from));
    if (!same_values(file->reader.read(*entry, piece), other_file->reader.read(*other, piece), dtype)) return false;
  }
  return true;
}

bool WeightLoad::read(const std::vector<WeightPart>& parts, std::uint64_t most) {
  const NoGradGuard no_grad;
  std::multimap<std::string_view, const WeightPart*> by_name;
  for (const WeightPart& part : parts) by_name.emplace(part.name, &part);
  for (std::uint64_t bytes = 0; next_ < match_.matches().size() && bytes < most; ++next_) {
    const auto& [source, name, is_transposed] = match_.matches()[next_];
    const WeightFiles::Tensor* const tensor = &files_.tensors()[source];
    const safetensors::Reader& reader = tensor->file->reader;
    const auto [first, last] = by_name.equal_range(name);
    for (auto each = first; each != last; ++each) {
      const WeightPart& to = *each->second;
      if (to.place.numel == 0) continue;
      bytes += static_cast<std::uint64_t>(to.place.numel) * item_size(tensor->entry->dtype);
      if (is_transposed) {
        const Tensor whole = raw::contiguous(raw::transpose(reader.read(*tensor->entry), 0, 1));
        raw::copy(raw::view(elements_at(whole, to.place), to.part.shape()), to.part);
      } else if (!reader.read_into(*tensor->entry, to.place, to.part)) {
        raw::copy(raw::view(reader.read(*tensor->entry, to.place), to.part.shape()), to.part);
      }
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
