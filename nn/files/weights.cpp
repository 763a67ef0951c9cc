// Finds the tensors of files that fit a model, and reads them.
#include "lockstep/nn/files/weights.h"

#include <algorithm>
#include <map>
#include <span>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/edit_distance_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/replace_elements_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

bool is_one_element(const Shape& shape) { return shape.dim() <= 1 && shape.numel() == 1; }

Shape reversed(const Shape& shape) { return Shape{shape[1], shape[0]}; }

bool may_be_missing(std::string_view name) { return name.ends_with("num_batches_tracked"); }

constexpr std::size_t kShown = 20;  // names of a kind, in errors

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

// The first component that all names have, if renaming it away makes at least one of them a name of the model.
std::string common_prefix(const std::vector<std::string>& names, const std::vector<std::string>& missing) {
  if (names.empty() || names[0].find('.') == std::string::npos) return "";
  const std::string prefix = names[0].substr(0, names[0].find('.') + 1);
  bool is_of_model = false;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix)) return "";
    is_of_model = is_of_model || std::ranges::find(missing, name.substr(prefix.size())) != missing.end();
  }
  return is_of_model ? prefix.substr(0, prefix.size() - 1) : "";
}

// "fc.weight", for which the file has "fc.wieght"; "": no name is similar.
std::string similar_names(const LoadWeightsResult& names) {
  constexpr std::size_t kMostNames = 200;
  if (names.missing.size() > kMostNames || names.unexpected.size() > kMostNames) return "";
  for (const std::string& missing : names.missing) {
    for (const std::string& other : names.unexpected) {
      if (edit_distance(missing, other) <= 2)
        return fmt::format("\n{} is similar to the file's {}", lockstep::in_quotes(missing),
                           lockstep::in_quotes(other));
    }
  }
  return "";
}

std::string hint_of(const LoadWeightsResult& names, const std::vector<std::string>& transposable, bool loads_some) {
  if (const std::string prefix = common_prefix(names.unexpected, names.missing); !prefix.empty())
    return fmt::format("\nthe file's names begin with \"{0}\": pass .rename = {{{{\"{0}\", \"\"}}}}", prefix);
  if (const std::string prefix = common_prefix(names.missing, names.unexpected); !prefix.empty())
    return fmt::format(
        "\nthe model's names begin with \"{0}\", the file's do not: pass .rename = [](const std::string& "
        "name) {{ return \"{0}.\" + name; }}",
        prefix);
  if (!transposable.empty())
    return fmt::format("\nthe file has {} transposed: pass .transpose with patterns of such names",
                       enumerate(transposable, kShown));
  return similar_names(names) + (loads_some ? "\n.strict = false loads the rest" : "");
}

}  // namespace

WeightLoad::WeightLoad(const char* op, const WeightFiles& files, const std::vector<WeightPart>& parts,
                       const std::set<std::string>& known, const LoadWeightsOptions& options)
    : op_(op), files_(files), options_(options) {
  match(parts, known);
  find_missing(parts);
  const bool is_complete = result_.missing.empty() && result_.unexpected.empty() && result_.other_shape.empty();
  if (options_.strict && !is_complete) refuse();
}

void WeightLoad::match(const std::vector<WeightPart>& parts, const std::set<std::string>& known) {
  std::map<std::string, Shape> shapes;
  for (const WeightPart& part : parts) shapes.emplace(part.name, part.shape);
  for (const WeightFiles::Tensor& tensor : files_.tensors()) {
    const std::string& of_file = tensor.entry->name;
    const std::string name = options_.rename(of_file);
    if (name.empty()) continue;
    const auto own = shapes.find(name);
    if (own == shapes.end()) {
      if (!known.contains(name)) result_.unexpected.push_back(of_file);
      continue;
    }
    LOCKSTEP_CHECK(found_.insert(name).second, "{}: {}: .rename gives several tensors the name {}, {} the last of them",
                   op_, files_.path(), lockstep::in_quotes(name), lockstep::in_quotes(of_file));
    tensor.file->reader.require_supported(*tensor.entry);
    const Shape &shape = own->second, &in_file = tensor.entry->shape;
    const bool is_transposed = shape.dim() == 2 && !options_.transpose.empty() && matches_any(options_.transpose, name);
    if (in_file == (is_transposed ? reversed(shape) : shape) || (is_one_element(shape) && is_one_element(in_file))) {
      matches_.push_back({&tensor, name, is_transposed});
      loaded_.insert(name);
      continue;
    }
    result_.other_shape.push_back(name);
    shapes_.push_back(fmt::format("{}: the model has {}, the file {}", lockstep::in_quotes(name), shape.to_string(),
                                  in_file.to_string()));
    if (shape.dim() == 2 && in_file == reversed(shape)) transposable_.push_back(name);
  }
}

void WeightLoad::find_missing(const std::vector<WeightPart>& parts) {
  std::set<const void*> read;
  for (const WeightPart& part : parts) {
    if (found_.contains(part.name)) read.insert(part.id);
  }
  for (const WeightPart& part : parts) {
    const bool is_there = found_.contains(part.name) || (part.id && read.contains(part.id)) || part.place.numel == 0;
    const bool is_listed = !result_.missing.empty() && result_.missing.back() == part.name;  // another part of it
    if (!is_there && !is_listed && !may_be_missing(part.name)) result_.missing.push_back(part.name);
  }
}

void WeightLoad::refuse() const {
  std::vector<std::string> kinds;
  const auto add = [&](const char* kind, const std::vector<std::string>& names) {
    if (!names.empty()) kinds.push_back(fmt::format("{} {}: {}", names.size(), kind, enumerate(names, kShown)));
  };
  add("missing", result_.missing);
  add("unexpected", result_.unexpected);
  if (!shapes_.empty())
    kinds.push_back(fmt::format("{} of another shape: {}", shapes_.size(),
                                fmt::join(std::span(shapes_).first(std::min(shapes_.size(), kShown)), ", ")));
  throw InvalidArgument(fmt::format("{}: {}: {}{}", op_, files_.path(), fmt::join(kinds, "; "),
                                    hint_of(result_, transposable_, !matches_.empty())));
}

bool WeightLoad::read(const std::vector<WeightPart>& parts, std::uint64_t most) {
  const NoGradGuard no_grad;
  std::multimap<std::string_view, const WeightPart*> by_name;
  for (const WeightPart& part : parts) by_name.emplace(part.name, &part);
  for (std::uint64_t bytes = 0; next_ < matches_.size() && bytes < most; ++next_) {
    const auto& [tensor, name, is_transposed] = matches_[next_];
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
  return next_ < matches_.size();
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
  const WeightFiles files(path);
  std::vector<WeightPart> parts = parts_of(module);
  WeightLoad load("load_weights", files, parts, {}, options);
  for (const auto& file : files.files()) safetensors::verify(file->source, file->reader);
  materialize_for(module, parts, load);
  parts = parts_of(module);
  while (load.read(parts, ~std::uint64_t{0})) {
  }
  return load.result();
}

}  // namespace lockstep::nn
