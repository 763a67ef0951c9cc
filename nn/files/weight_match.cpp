// Finds the tensors of files and dicts that fit a model.
#include <algorithm>
#include <map>
#include <span>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/edit_distance_internal.h"
#include "lockstep/nn/files/weights_internal.h"
#include "lockstep/nn/hash_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

bool is_one_element(const Shape& shape) { return shape.dim() <= 1 && shape.numel() == 1; }

Shape reversed(const Shape& shape) { return Shape{shape[1], shape[0]}; }

bool may_be_missing(std::string_view name) { return name.ends_with("num_batches_tracked"); }

constexpr std::size_t kShown = 20;  // names of a kind, in errors

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
std::string similar_names(const char* source, const LoadWeightsResult& names) {
  constexpr std::size_t kMostNames = 200;
  if (names.missing.size() > kMostNames || names.unexpected.size() > kMostNames) return "";
  for (const std::string& missing : names.missing) {
    for (const std::string& other : names.unexpected) {
      if (missing != other && edit_distance(missing, other) <= 2)
        return fmt::format("\n{} is similar to the {}'s {}", quoted_name(missing), source, quoted_name(other));
    }
  }
  return "";
}

std::string transpose_hint(const LoadCall& call, const std::vector<std::string>& transposable,
                           const std::vector<std::string>& square) {
  return fmt::format(
      "\nthe {} has {} transposed: pass .transpose with patterns of such names\nSquare matrices{} cannot be "
      "recognised: pass those of layers of the same kind, too (Hugging Face's Conv1D: c_attn, c_proj, c_fc)",
      call.source, enumerate(transposable), square.empty() ? "" : fmt::format(" ({})", enumerate(square)));
}

std::string hint_of(const LoadCall& call, const LoadWeightsResult& names, const std::vector<std::string>& transposable,
                    const std::vector<std::string>& square, bool loads_some) {
  if (!call.index.empty() && !names.missing.empty())
    return fmt::format("\nthe file has a part of the model; pass the index: {}", call.index);
  if (!call.has_options) return similar_names(call.source, names) + call.advice;
  if (const std::string prefix = common_prefix(names.unexpected, names.missing); !prefix.empty())
    return fmt::format("\nthe {1}'s names begin with \"{0}\": pass .rename = {{{{\"{0}\", \"\"}}}}", prefix,
                       call.source);
  if (const std::string prefix = common_prefix(names.missing, names.unexpected); !prefix.empty())
    return fmt::format(
        "\nthe model's names begin with \"{0}\", the {1}'s do not: pass .rename = [](const std::string& "
        "name) {{ return \"{0}.\" + name; }}",
        prefix, call.source);
  if (!transposable.empty()) return transpose_hint(call, transposable, square);
  std::string fixes = similar_names(call.source, names);
  const bool leaves_out = loads_some && fixes.empty() && !names.unexpected.empty();
  if (leaves_out)
    fixes = fmt::format("\n.rename = {{{{{}, \"\"}}}} leaves a tensor out", quoted_name(names.unexpected[0]));
  return fixes + (loads_some ? "\n.strict = false loads the rest" : "");
}

// Adds "h", "h.0" and "h.0.bias" for "h.0.bias".
void add_paths(const std::string& name, std::set<std::string>& paths) {
  for (std::size_t end = name.size(); end != std::string::npos && end > 0; end = name.rfind('.', end - 1))
    paths.insert(name.substr(0, end));
}

// The first pattern of .rename that fits no name, which may be misspelt; empty if all fit one.
std::string unused_pattern(const LoadCall& call, const std::vector<WeightSource>& sources, const Rename& rename) {
  std::vector<std::string> names;
  for (const WeightSource& source : sources) names.push_back(source.name);
  const std::optional<std::string> pattern = rename.unused(names);
  if (!pattern) return "";
  std::set<std::string> paths;
  for (const std::string& name : names) add_paths(name, paths);
  return fmt::format("\n.rename: the pattern {} fits no name of the {}{}", quoted_name(*pattern), call.source,
                     nearest(*pattern, {paths.begin(), paths.end()}));
}

// "(2, 3)"
std::string shape_text(const WeightSource& source) {
  return source.shape ? source.shape->to_string() : "an undefined tensor";
}

}  // namespace

WeightMatch::WeightMatch(const LoadCall& call, const std::vector<WeightSource>& sources,
                         const std::vector<WeightPart>& parts, const std::set<std::string>& known,
                         const LoadWeightsOptions& options) {
  check_transpose(call, parts, known, options);
  match(call, sources, parts, known, options);
  find_missing(parts);
  const bool is_complete = result_.missing.empty() && result_.unexpected.empty() && result_.other_shape.empty();
  if (options.strict && !is_complete) refuse(call, unused_pattern(call, sources, options.rename));
}

void WeightMatch::check_transpose(const LoadCall& call, const std::vector<WeightPart>& parts,
                                  const std::set<std::string>& known, const LoadWeightsOptions& options) {
  if (options.transpose.empty()) return;
  std::set<std::string> names = known, paths;  // of matrices; other processes know the shapes of the others
  for (const WeightPart& part : parts) {
    if (part.shape.dim() != 2)
      names.erase(part.name);
    else
      names.insert(part.name);
  }
  for (const std::string& pattern : options.transpose) {
    if (std::ranges::any_of(names, [&](const std::string& name) { return matches_any({pattern}, name); })) continue;
    for (const std::string& name : names) add_paths(name, paths);
    throw InvalidArgument(fmt::format("{}.transpose: the pattern {} describes no matrix of the model{}", call.where,
                                      quoted_name(pattern), nearest(pattern, {paths.begin(), paths.end()})));
  }
}

void WeightMatch::match(const LoadCall& call, const std::vector<WeightSource>& sources,
                        const std::vector<WeightPart>& parts, const std::set<std::string>& known,
                        const LoadWeightsOptions& options) {
  std::map<std::string, Shape> shapes;
  for (const WeightPart& part : parts) shapes.emplace(part.name, part.shape);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::string& of_source = sources[i].name;
    const std::string name = options.rename(of_source);
    if (name.empty()) continue;
    const auto own = shapes.find(name);
    if (own == shapes.end() || !sources[i].is_listed) {
      if (known.contains(name) && sources[i].is_listed) continue;
      result_.unexpected.push_back(of_source);
      renamed_.push_back(sources[i].is_listed ? name : "");
      continue;
    }
    LOCKSTEP_CHECK(found_.insert(name).second, "{}.rename gives several tensors the name {}, {} the last of them",
                   call.where, quoted_name(name), quoted_name(of_source));
    const Shape& shape = own->second;
    const std::optional<Shape>& given = sources[i].shape;
    const bool is_transposed = shape.dim() == 2 && !options.transpose.empty() && matches_any(options.transpose, name);
    if (given &&
        (*given == (is_transposed ? reversed(shape) : shape) || (is_one_element(shape) && is_one_element(*given)))) {
      matches_.push_back({i, name, is_transposed});
      if (shape.dim() == 2 && shape[0] == shape[1] && shape[0] > 1 && !is_transposed) square_.push_back(name);
      loaded_.insert(name);
      continue;
    }
    result_.other_shape.push_back(name);
    shapes_.push_back(fmt::format("{}: the model has {}, the {} {}{}", quoted_name(name), shape.to_string(),
                                  call.source, shape_text(sources[i]), is_transposed ? ", to be transposed" : ""));
    if (given && shape.dim() == 2 && *given == reversed(shape)) transposable_.push_back(name);
  }
}

void WeightMatch::find_missing(const std::vector<WeightPart>& parts) {
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

std::vector<WeightMatch::Tied> WeightMatch::tied(const std::vector<WeightPart>& parts) const {
  std::map<std::string_view, const Match*> by_name;
  for (const Match& match : matches_) by_name.emplace(match.name, &match);
  std::map<const void*, std::pair<const Match*, const WeightPart*>> firsts;
  std::vector<Tied> result;
  for (const WeightPart& part : parts) {
    const auto found = by_name.find(part.name);
    if (!part.id || part.place.numel == 0 || found == by_name.end()) continue;
    const auto& [first, of_first] = firsts.try_emplace(part.id, found->second, &part).first->second;
    const bool is_same_part = of_first->shape == part.shape && of_first->place == part.place;
    if (first != found->second && is_same_part) result.push_back({&part, *first, *found->second});
  }
  return result;
}

bool same_values(const Tensor& a, const Tensor& b, DType dtype) {
  const auto in_memory = [&](const Tensor& tensor) { return raw::contiguous(tensor.to(Device()).to(dtype)); };
  const Tensor x = in_memory(a), y = in_memory(b);
  return std::ranges::equal(bytes_of(x), bytes_of(y)) || raw::equal(x, y);  // also equal NaNs; 0 and -0
}

void throw_tied(const LoadCall& call, const std::string& first, const std::string& second) {
  throw InvalidArgument(fmt::format(
      "{}{} and {} are one tensor of the model, but differ in the {}{}", call.where, quoted_name(first),
      quoted_name(second), call.source,
      call.has_options ? fmt::format("\nLeave one of them out: .rename = {{{{{}, \"\"}}}}", quoted_name(second))
                       : call.advice));
}

void WeightMatch::refuse(const LoadCall& call, const std::string& unused) const {
  std::vector<std::string> kinds;
  const auto add = [&](const char* kind, const std::vector<std::string>& names) {
    if (!names.empty()) kinds.push_back(fmt::format("{} {}: {}", names.size(), kind, enumerate(names, kShown)));
  };
  const auto add_texts = [&](const char* kind, const std::vector<std::string>& texts) {
    if (texts.empty()) return;
    const std::span<const std::string> shown = std::span(texts).first(std::min(texts.size(), kShown));
    kinds.push_back(fmt::format("{} {}: {}{}", texts.size(), kind, fmt::join(shown, ", "),
                                shown.size() < texts.size() ? fmt::format(" and {} more", texts.size() - kShown) : ""));
  };
  std::vector<std::string> unexpected;
  for (std::size_t i = 0; i < renamed_.size(); ++i) {
    unexpected.push_back(quoted_name(result_.unexpected[i]));
    if (renamed_[i].empty())
      unexpected.back() += " (not in the index)";
    else if (renamed_[i] != result_.unexpected[i])
      unexpected.back() += fmt::format(" (renamed to {})", quoted_name(renamed_[i]));
  }
  add("missing", result_.missing);
  add_texts("unexpected", unexpected);
  add_texts("of another shape", shapes_);
  throw InvalidArgument(fmt::format("{}{}{}{}", call.where, fmt::join(kinds, "; "), unused,
                                    hint_of(call, result_, transposable_, square_, !matches_.empty())));
}

}  // namespace lockstep::nn
