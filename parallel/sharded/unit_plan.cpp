#include "lockstep/parallel/sharded/unit_plan_internal.h"

#include <algorithm>
#include <unordered_map>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/line_squares_internal.h"

namespace lockstep::parallel {
namespace {

std::int64_t elements_of(const nn::Module& module) {
  std::int64_t elements = 0;
  for (const nn::Parameter& parameter : module.parameters()) elements += parameter.master().numel();
  return elements;
}

// The pattern of the children of the largest ModuleList; empty if there is none.
void find_largest_list(const nn::Module& module, const std::string& path, std::int64_t& most, std::string& pattern) {
  const auto* const list = dynamic_cast<const nn::ModuleList*>(&module);
  const std::int64_t elements = list ? elements_of(module) : 0;
  if (elements > most) {
    most = elements;
    pattern = nn::join(path, "*");
  }
  for (const nn::Module* child : module.children())
    find_largest_list(*child, nn::join(path, child->name()), most, pattern);
}

class Planner {
 public:
  Planner(nn::Module& module, const std::vector<std::string>& patterns, const MixedPrecision& mixed)
      : patterns_(patterns), mixed_(mixed) {
    units_.push_back({.name = {}, .module = &module});
    assign(module, {}, 0);
  }

  void check_patterns() const {
    for (std::size_t k = 0; k < patterns_.size(); ++k)
      LOCKSTEP_CHECK(used_.size() > k && used_[k],
                     "ShardedDataParallel: .units: no module matches \"{}\"; \"blocks.*\" matches the children of "
                     "the module \"blocks\"",
                     patterns_[k]);
  }

  std::vector<UnitLayout> finish(const optim::NamedParameters& parameters, int ranks) {
    for (std::size_t p = 0; p < parameters.size(); ++p)
      add(units_[unit_of_.at(parameters[p].second.id())], p, parameters[p].second.master());
    for (UnitLayout& unit : units_) {
      for (FlatLayout& flat : unit.flats) pad(flat, ranks);
    }
    std::vector<UnitLayout> units;
    std::ranges::copy_if(units_, std::back_inserter(units),
                         [&](const UnitLayout& unit) { return unit.name.empty() || !unit.flats.empty(); });
    return units;
  }

 private:
  // Elements of a line of 64 bytes in the smallest of the layout's dtypes: all of them have whole lines.
  static std::int64_t line(const FlatLayout& flat) {
    const std::size_t smallest = std::min({item_size(flat.dtype), item_size(flat.master), item_size(flat.gradient)});
    return kLineBytes / static_cast<std::int64_t>(smallest);
  }
  static std::int64_t round_up(std::int64_t elements, std::int64_t unit) { return (elements + unit - 1) / unit * unit; }

  bool is_unit(const std::string& path) {
    used_.resize(patterns_.size());
    bool found = false;
    for (std::size_t k = 0; k < patterns_.size(); ++k) {
      if (path.empty() || !nn::matches(patterns_[k], path)) continue;
      used_[k] = found = true;
    }
    return found;
  }

  void assign(nn::Module& module, const std::string& path, std::size_t unit) {
    if (is_unit(path)) {
      unit = units_.size();
      units_.push_back({.name = path, .module = &module});
    }
    for (const auto& [name, parameter] : module.named_parameters()) {
      if (name.find('.') != name.npos) continue;  // a child's
      const auto [owner, is_new] = unit_of_.emplace(parameter.id(), unit);
      if (!is_new && owner->second != unit) owner->second = 0;
    }
    for (nn::Module* child : module.children()) assign(*child, nn::join(path, child->name()), unit);
  }

  void add(UnitLayout& unit, std::size_t position, const Tensor& tensor) const {
    const DType master = tensor.dtype();
    const Device device = nn::is_deferred(tensor) ? Device() : tensor.device();
    const auto fits = [&](const FlatLayout& flat) {
      return flat.master == master && flat.device == device && flat.trained == tensor.requires_grad();
    };
    auto flat = std::ranges::find_if(unit.flats, fits);
    if (flat == unit.flats.end()) {
      unit.flats.push_back({.dtype = is_floating_point(master) ? mixed_.parameters.value_or(master) : master,
                            .master = master,
                            .gradient = mixed_.reduce.value_or(sum_dtype(master)),
                            .device = device,
                            .trained = tensor.requires_grad()});
      flat = unit.flats.end() - 1;
    }
    flat->parameters.push_back(position);
    flat->offsets.push_back(flat->elements);
    flat->elements = round_up(flat->elements + tensor.numel(), line(*flat));
  }

  static void pad(FlatLayout& flat, int ranks) { flat.elements = round_up(flat.elements, line(flat) * ranks); }

  const std::vector<std::string>& patterns_;
  const MixedPrecision& mixed_;
  std::vector<bool> used_;  // by pattern: it has matched a module
  std::vector<UnitLayout> units_;
  std::unordered_map<const nn::TensorSlot*, std::size_t> unit_of_;
};

}  // namespace

TensorPart part_in_shard(const Shape& shape, std::int64_t offset, std::int64_t each, int rank) {
  const std::int64_t begin = each * rank, end = begin + each;
  const std::int64_t from = std::clamp(offset, begin, end), to = std::clamp(offset + shape.numel(), from, end);
  return TensorPart::whole(shape).narrow(from < to ? from - offset : 0, to - from);
}

std::vector<UnitLayout> plan_units(nn::Module& module, const optim::NamedParameters& parameters,
                                   const std::vector<std::string>& patterns, const MixedPrecision& mixed, int ranks) {
  std::vector<std::string> chosen = patterns;
  if (chosen.empty()) {
    std::int64_t most = 0;
    std::string pattern;
    find_largest_list(module, {}, most, pattern);
    if (!pattern.empty()) chosen.push_back(pattern);
  }
  Planner planner(module, chosen, mixed);
  planner.check_patterns();
  return planner.finish(parameters, ranks);
}

}  // namespace lockstep::parallel
