#include "lockstep/parallel/model_parallel/tensor_parallel.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/attention.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"
#include "lockstep/parallel/model_parallel/tensor_attention_internal.h"
#include "lockstep/parallel/model_parallel/tensor_inner_internal.h"
#include "lockstep/parallel/model_parallel/tensor_linear_internal.h"
#include "lockstep/parallel/model_parallel/tensor_repeat_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"

namespace lockstep::parallel {
namespace {

constexpr const char* kOp = "parallelize";

template <class Style>
const Style* style_of(const StyledModule& each) {
  return std::get_if<Style>(&each.style);
}

bool is_power_of_two(std::int64_t n) { return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n)); }

std::shared_ptr<const TensorSlices> slices_of(const DeviceMesh& axis, int count) {
  const std::vector<MeshAxis> axes = axis.axes();
  LOCKSTEP_CHECK(axes.size() == 1,
                 "{}: the mesh has the axes {}; pass the one whose ranks share the model, for example mesh[\"tp\"]",
                 kOp, axis.to_string());
  LOCKSTEP_CHECK(count >= 0, "{}: {} tensor slices, expected 1 or more, or 0 for as many as ranks", kOp, count);
  const int ranks = axis.size(), slices = count == 0 ? ranks : count;
  std::vector<std::int64_t> possible;
  for (int n = 1; n <= slices; ++n) {
    if (slices % n == 0 && is_power_of_two(slices / n)) possible.push_back(n);
  }
  LOCKSTEP_CHECK(std::ranges::find(possible, ranks) != possible.end(),
                 "{}: {} tensor slices cannot be distributed evenly to {} ranks of {}; use {} ranks", kOp, slices,
                 ranks, axes[0].name, choice_of(possible));
  return std::make_shared<const TensorSlices>(TensorSlices{axis.size() > 1 ? axis.group() : nullptr, slices});
}

// --- checks, before anything is changed ---------------------------------------------------------------------------

const nn::Linear& linear_of(const StyledModule& each) { return dynamic_cast<const nn::Linear&>(*each.module); }

void check_colwise(const StyledModule& each, const ColwiseParallel& style, int slices) {
  const std::int64_t outputs = linear_of(each).weight.master().size(0);
  LOCKSTEP_CHECK(style.parts >= 1 && style.multiple_of >= 1 && style.repeat >= 1,
                 "{}: {}: .parts is {}, .multiple_of {}, .repeat {}; expected 1 or more", kOp, each.path, style.parts,
                 style.multiple_of, style.repeat);
  check_repeat(kOp, each.path, style, outputs, slices);
  if (slices > 1) slices /= style.repeat;  // distinct ones
  LOCKSTEP_CHECK(outputs % style.parts == 0, "{}: {}: .parts = {}: {} outputs are not {} equal parts", kOp, each.path,
                 style.parts, outputs, style.parts);
  const std::int64_t part = outputs / style.parts;
  LOCKSTEP_CHECK(part % slices == 0, "{}: {}: {} outputs{} cannot be cut into {} slices", kOp, each.path, part,
                 style.parts > 1 ? " of each part" : "", slices);
  std::vector<std::int64_t> possible;
  for (std::int64_t n = 1; n <= part / style.multiple_of; ++n) {
    if (part % n == 0 && part / n % style.multiple_of == 0) possible.push_back(n);
  }
  LOCKSTEP_CHECK(part / slices % style.multiple_of == 0,
                 "{}: {}: {} outputs in {} slices: {} columns are not whole heads of {}; {}", kOp, each.path, part,
                 slices, part / slices, style.multiple_of,
                 possible.empty()
                     ? std::string("set .multiple_of to the size of a head")
                     : fmt::format("use {} slices", choice_of(possible)) + repeat_hint(style, part, slices));
}

void check_rowwise(const StyledModule& each, int slices) {
  const std::int64_t inputs = linear_of(each).weight.master().size(1);
  LOCKSTEP_CHECK(inputs % slices == 0, "{}: {}: {} inputs cannot be cut into {} slices", kOp, each.path, inputs,
                 slices);
}

void check_not_built(const StyledModule& each) {
  for (const bool is_built : {style_of<VocabParallel>(each) == nullptr, style_of<Recompute>(each) == nullptr})
    LOCKSTEP_CHECK(is_built, "{}: {}: the style {} is not built yet", kOp, each.path, name_of(each.style));
}

// Columns that one layer leaves cut are taken by another one of the same module.
void check_regions(const std::vector<StyledModule>& styled) {
  for (const StyledModule& each : styled) {
    const auto* const column = style_of<ColwiseParallel>(each);
    const bool leaves = column && !column->gather_output, takes = style_of<RowwiseParallel>(each) != nullptr;
    if (!leaves && !takes) continue;
    const bool has_other = std::ranges::any_of(styled, [&](const StyledModule& other) {
      if (other.parent != each.parent) return false;
      const auto* const of_other = style_of<ColwiseParallel>(other);
      return leaves ? style_of<RowwiseParallel>(other) != nullptr : of_other && !of_other->gather_output;
    });
    LOCKSTEP_CHECK(has_other || !takes,
                   "{}: {} is RowwiseParallel, but its parent has no ColwiseParallel linear before it: it would get "
                   "whole rows",
                   kOp, each.path);
    LOCKSTEP_CHECK(
        has_other,
        "{}: {} is ColwiseParallel, but its parent has no RowwiseParallel linear that takes its columns; name "
        "one, or set .gather_output",
        kOp, each.path);
  }
}

void check_model(nn::Module& module, const std::vector<StyledModule>& styled) {
  nn::refuse_slices(kOp, module.parameters(), "call parallelize once, with all styles");
  for (const StyledModule& each : styled) {
    for (const auto& [name, parameter] : each.module->named_parameters())
      LOCKSTEP_CHECK(parameter.sharding() == nn::Sharding::kNone,
                     "{}: {} is sharded already; call parallelize before the training mode is constructed", kOp,
                     nn::join(each.path, name));
  }
}

// The names of a module's weights that its style cuts.
std::vector<std::string> cut_weights(const StyledModule& each) {
  if (style_of<AttentionParallel>(each)) return {"in_proj_weight", "out_proj.weight"};
  if (style_of<ColwiseParallel>(each) || style_of<RowwiseParallel>(each)) return {"weight"};
  return {};
}

// A parameter that is cut in one place and whole in another would be trained twice.
void check_ties(nn::Module& module, const std::vector<StyledModule>& styled) {
  const StateDict state = nn::listed_state(module);
  for (const StyledModule& each : styled) {
    for (const std::string& own : cut_weights(each)) {
      const std::string path = nn::join(each.path, own);
      const Tensor weight = state.at(path);
      for (const auto& [name, tensor] : state) {
        const bool is_tied = tensor.impl().storage == weight.impl().storage && name != path;
        LOCKSTEP_CHECK(!is_tied, "{}: {} is also {}; {} is for a weight of one layer", kOp, path, name,
                       name_of(each.style));
      }
    }
  }
}

// --- cutting ------------------------------------------------------------------------------------------------------

std::vector<nn::Parameter> cut(const StyledModule& each, const std::string& name, const Cut& cut,
                               const TensorSlices& slices) {
  return cut_own_parameter(*each.module, each.path, name, cut, slices);
}

void cut_layer(const StyledModule& each, const std::shared_ptr<const TensorSlices>& slices) {
  if (const auto* const column = style_of<ColwiseParallel>(each)) {
    const Cut rows{.dim = 0, .parts = column->parts, .repeat = column->repeat};
    auto weights = cut(each, "weight", rows, *slices), biases = cut(each, "bias", rows, *slices);
    nn::add_runner(*each.module, std::make_shared<const ColwiseRunner>(slices, each.path, *column, std::move(weights),
                                                                       std::move(biases)));
  } else if (style_of<RowwiseParallel>(each)) {
    auto weights = cut(each, "weight", {.dim = 1}, *slices);
    nn::add_runner(*each.module,
                   std::make_shared<const RowwiseRunner>(slices, std::move(weights), linear_of(each).bias));
  } else if (style_of<AttentionParallel>(each)) {
    cut_attention(each, slices);
  }
}

std::int64_t bytes_of_parameters(const nn::Module& module) {
  std::int64_t bytes = 0;
  for (const nn::Parameter& parameter : module.parameters())
    bytes += parameter.master().numel() * static_cast<std::int64_t>(item_size(parameter.master().dtype()));
  return bytes;
}

TensorPlan::Layer layer_of(const StyledModule& each, const TensorSlices& slices, std::set<const nn::Module*>& entered) {
  TensorPlan::Layer layer{.path = each.path, .style = name_of(each.style), .first = slices.first()};
  if (style_of<AttentionParallel>(each)) {
    const std::int64_t width = dynamic_cast<const nn::MultiheadAttention&>(*each.module).out_proj.weight->size(0);
    layer.columns = layer.summed_outputs = layer.summed_inputs = width;
    return layer;
  }
  const Shape& shape = linear_of(each).weight.master().shape();
  if (style_of<RowwiseParallel>(each)) {
    layer.columns = shape[1];
    layer.summed_outputs = shape[0];
  } else {
    layer.columns = shape[0] * style_of<ColwiseParallel>(each)->repeat;  // of all slices
    layer.summed_inputs = entered.insert(each.parent).second ? shape[1] : 0;
    layer.gathered_outputs = style_of<ColwiseParallel>(each)->gather_output ? shape[0] : 0;
  }
  return layer;
}

}  // namespace

TensorPlan parallelize(nn::Module& module, const DeviceMesh& axis, const TensorParallelOptions& options) {
  const std::shared_ptr<const TensorSlices> slices = slices_of(axis, options.tensor_slices);
  const std::vector<StyledModule> styled = styled_modules(kOp, module, options.plan);
  LOCKSTEP_CHECK(!options.sequence_parallel, "{}: .sequence_parallel is not built yet", kOp);
  check_model(module, styled);
  for (const StyledModule& each : styled) {
    check_not_built(each);
    if (const auto* const column = style_of<ColwiseParallel>(each)) check_colwise(each, *column, slices->count);
    if (style_of<RowwiseParallel>(each)) check_rowwise(each, slices->count);
    if (style_of<AttentionParallel>(each)) check_attention(kOp, each, styled, slices->count);
  }
  check_regions(styled);
  check_ties(module, styled);
  if (slices->group) {
    std::string text = fmt::format("{} slices", slices->count);
    for (const StyledModule& each : styled) text += fmt::format(", {} {}", each.path, name_of(each.style));
    check_same_text("parallelize: ranks have different options", text, *slices->group);
  }

  TensorPlan plan{.slices = slices->count, .ranks = slices->ranks(), .whole_bytes = bytes_of_parameters(module)};
  if (slices->count > 1) {
    prepare_inner_modules(module, styled, slices);
    std::set<const nn::Module*> entered;
    std::vector<nn::Module*> parents;
    for (const StyledModule& each : styled) {
      if (style_of<SequenceParallel>(each)) continue;
      plan.layers.push_back(layer_of(each, *slices, entered));
      cut_layer(each, slices);
      nn::Module* const runs_region = style_of<AttentionParallel>(each) ? each.module : each.parent;
      if (std::ranges::find(parents, runs_region) == parents.end()) parents.push_back(runs_region);
    }
    for (nn::Module* parent : parents) nn::add_runner(*parent, std::make_shared<const RegionRunner>(slices));
  }
  plan.parameter_bytes = bytes_of_parameters(module);
  return plan;
}

std::int64_t TensorPlan::bytes_per_micro_batch(std::int64_t positions) const {
  std::int64_t bytes = 0;
  for (const Layer& layer : layers) {
    const std::int64_t widths = 2 * (layer.summed_outputs + layer.summed_inputs) + layer.gathered_outputs;
    bytes += (ranks - 1) * widths * positions * 4 / ranks;
  }
  return bytes;
}

std::string TensorPlan::to_string() const {
  std::string text =
      fmt::format("{} tensor slices on {} rank{}, {} on each; {} of {} bytes of parameters on this rank\n", slices,
                  ranks, ranks == 1 ? "" : "s", slices / ranks, parameter_bytes, whole_bytes);
  std::size_t longest = 6;
  for (const Layer& layer : layers) longest = std::max(longest, layer.path.size());
  if (!layers.empty()) text += fmt::format("{:<{}}  {:<16} {}\n", "module", longest, "style", "columns of this rank");
  for (const Layer& layer : layers) {
    const std::int64_t each = layer.columns / slices, count = each * (slices / ranks);
    text += fmt::format("{:<{}}  {:<16} {} to {} of {}\n", layer.path, longest, layer.style, layer.first * each,
                        layer.first * each + count - 1, layer.columns);
  }
  return text + fmt::format("a micro-batch of n positions sends {} n bytes, in forward and backward\n",
                            bytes_per_micro_batch(1));
}

}  // namespace lockstep::parallel
