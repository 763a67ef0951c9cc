#include "lockstep/parallel/model_parallel/tensor_parallel.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/attention.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/comm/device_mesh_internal.h"
#include "lockstep/parallel/model_parallel/recompute_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"
#include "lockstep/parallel/model_parallel/tensor_attention_internal.h"
#include "lockstep/parallel/model_parallel/tensor_inner_internal.h"
#include "lockstep/parallel/model_parallel/tensor_linear_internal.h"
#include "lockstep/parallel/model_parallel/tensor_repeat_internal.h"
#include "lockstep/parallel/model_parallel/tensor_sequence_internal.h"
#include "lockstep/parallel/model_parallel/tensor_vocab_internal.h"
#include "lockstep/parallel/step/agreement_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"

namespace lockstep::parallel {
namespace {

constexpr const char* kOp = "parallelize";

template <class Style>
const Style* style_of(const StyledModule& each) {
  return std::get_if<Style>(&each.style);
}

bool is_power_of_two(std::int64_t n) { return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n)); }

std::shared_ptr<const TensorSlices> slices_of(const DeviceMesh& axis, int count, bool cuts_sequence) {
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
  return std::make_shared<const TensorSlices>(
      TensorSlices{axis.size() > 1 ? axis.group() : nullptr, slices, cuts_sequence, whole_group(axis)});
}

// --- checks, before anything is changed ---------------------------------------------------------------------------

const nn::Linear& linear_of(const StyledModule& each) { return dynamic_cast<const nn::Linear&>(*each.module); }

// The weight of a Linear or an Embedding.
const nn::Parameter& weight_of(const StyledModule& each) {
  const auto* const table = dynamic_cast<const nn::Embedding*>(each.module);
  return table ? table->weight : linear_of(each).weight;
}

void check_colwise(const StyledModule& each, const ColwiseParallel& style, int slices) {
  const std::int64_t outputs = linear_of(each).weight.master().size(0);
  LOCKSTEP_CHECK(style.parts >= 1 && style.multiple_of >= 1 && style.repeat >= 1,
                 "{}: {}: .parts is {}, .multiple_of {}, .repeat {}; expected 1 or more", kOp, each.path, style.parts,
                 style.multiple_of, style.repeat);
  check_repeat(kOp, each.path, style, outputs, slices);
  const int sharing = slices > 1 ? style.repeat : 1;  // slices for each distinct one
  slices /= sharing;
  LOCKSTEP_CHECK(outputs % style.parts == 0, "{}: {}: .parts = {}: {} outputs are not {} equal parts", kOp, each.path,
                 style.parts, outputs, style.parts);
  const std::int64_t part = outputs / style.parts;
  const std::string columns = style.parts == 1
                                  ? fmt::format("{} outputs", outputs)
                                  : fmt::format("{} outputs in {} parts: {} of each part", outputs, style.parts, part);
  std::vector<std::int64_t> possible;
  for (std::int64_t n = 1; n <= part / style.multiple_of; ++n) {
    if (part % n == 0 && part / n % style.multiple_of == 0) possible.push_back(n * sharing);
  }
  LOCKSTEP_CHECK(sharing == 1 || part % slices == 0 || possible.empty(),
                 "{}: {}: {} cannot be cut into {} slices with .repeat = {}; use {} slices", kOp, each.path, columns,
                 slices * sharing, sharing, choice_of(possible));
  LOCKSTEP_CHECK(part % slices == 0, "{}: {}: {} cannot be cut into {} slices; use a number of slices that divides {}",
                 kOp, each.path, columns, slices * sharing, part);
  LOCKSTEP_CHECK(
      part / slices % style.multiple_of == 0, "{}: {}: {} in {} slices: {} columns are not whole heads of {}; {}", kOp,
      each.path, columns, slices * sharing, part / slices, style.multiple_of,
      possible.empty() ? std::string("set .multiple_of to the size of a head")
                       : fmt::format("use {} slices", choice_of(possible)) + repeat_hint(style, part, slices));
}

void check_rowwise(const StyledModule& each, int slices) {
  const std::int64_t inputs = linear_of(each).weight.master().size(1);
  LOCKSTEP_CHECK(inputs % slices == 0, "{}: {}: {} inputs cannot be cut into {} slices", kOp, each.path, inputs,
                 slices);
}

void check_vocabulary(const StyledModule& each, int slices) {
  const std::int64_t rows = weight_of(each).master().size(0);
  LOCKSTEP_CHECK(rows_of_slice(rows, slices - 1, slices).count > 0,
                 "{}: {}: a vocabulary of {} cannot be cut into {} slices of {} rows, of which the last would be empty",
                 kOp, each.path, rows, slices, rows_of_slice(rows, 0, slices).count);
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

// With sequence parallelism, the gradient of a parameter that each rank uses for its positions is a part of the sum.
void check_all_styled(const nn::Module& module, const std::vector<StyledModule>& styled) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    const std::string owner(nn::module_path(name));
    const auto names = [&](const StyledModule& each) { return !style_of<Recompute>(each) && is_in(owner, each.path); };
    LOCKSTEP_CHECK(std::ranges::any_of(styled, names),
                   "{}: {} has parameters and no style; with .sequence_parallel name it SequenceParallel", kOp,
                   owner.empty() ? "the model itself" : owner);
  }
}

void check_model(nn::Module& module, const std::vector<StyledModule>& styled) {
  nn::refuse_parts(kOp, module.parameters(), "call parallelize once, with all styles");
  for (const nn::Module* const each : module.modules())
    LOCKSTEP_CHECK(!nn::InTrainingMode::holds(*each),
                   "{}: a training mode holds the model, and would keep the whole parameters; call parallelize before "
                   "the training mode is constructed",
                   kOp);
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
  if (style_of<ColwiseParallel>(each) || style_of<RowwiseParallel>(each) || style_of<VocabParallel>(each))
    return {"weight"};
  return {};
}

// A parameter that is cut in one place and whole in another would be trained twice.
void check_ties(nn::Module& module, const std::vector<StyledModule>& styled) {
  const StateDict state = nn::listed_state(module);
  const auto is_vocabulary = [&](const std::string& name) {
    return std::ranges::any_of(styled, [&](const StyledModule& other) {
      return style_of<VocabParallel>(other) && nn::join(other.path, "weight") == name;
    });
  };
  for (const StyledModule& each : styled) {
    const bool is_vocabulary_style = style_of<VocabParallel>(each) != nullptr;
    for (const std::string& own : cut_weights(each)) {
      const std::string path = nn::join(each.path, own);
      const Tensor weight = state.at(path);
      for (const auto& [name, tensor] : state) {
        if (tensor.impl().storage != weight.impl().storage || name == path) continue;
        LOCKSTEP_CHECK(is_vocabulary_style, "{}: {} is {}, too; {} is for a weight of one layer", kOp, path, name,
                       name_of(each.style));
        LOCKSTEP_CHECK(is_vocabulary(name),
                       "{}: {} is {}, which is cut along the vocabulary; give {} the style VocabParallel, too", kOp,
                       name, path, nn::module_path(name));
      }
    }
  }
}

// --- cutting ------------------------------------------------------------------------------------------------------

// Cuts the layers of a model.
class Cutter {
 public:
  explicit Cutter(std::shared_ptr<const TensorSlices> slices) : slices_(std::move(slices)) {}

  void cut(const StyledModule& each) {
    if (const auto* const column = style_of<ColwiseParallel>(each)) {
      const Cut rows{.dim = 0, .parts = column->parts, .repeat = column->repeat};
      auto weights = cut(each, "weight", rows), biases = cut(each, "bias", rows);
      add<ColwiseRunner>(each, each.path, *column, std::move(weights), std::move(biases));
    } else if (style_of<RowwiseParallel>(each)) {
      add<RowwiseRunner>(each, cut(each, "weight", {.dim = 1}), linear_of(each).bias);
    } else if (const auto* const vocabulary = style_of<VocabParallel>(each)) {
      const Cut rows{.is_uneven = true};
      const std::int64_t size = weight_of(each).master().size(0);
      auto weights = cut(each, "weight", rows);
      if (const auto* const table = dynamic_cast<const nn::Embedding*>(each.module))
        add<VocabEmbeddingRunner>(each, std::move(weights), size, table->padding_idx());
      else
        add<VocabLinearRunner>(each, std::move(weights), cut(each, "bias", rows), size, vocabulary->gather_output);
    } else if (style_of<AttentionParallel>(each)) {
      cut_attention(each, slices_);
    }
  }

 private:
  template <class Runner, class... Args>
  void add(const StyledModule& each, Args&&... args) {
    nn::add_runner(*each.module, std::make_shared<const Runner>(slices_, std::forward<Args>(args)...));
  }

  // Replaces a parameter of a layer by this rank's slices. None if the layer has no such parameter (no bias). Tied
  // parameters have the same slices.
  std::vector<nn::Parameter> cut(const StyledModule& each, const std::string& name, const Cut& how) {
    for (const auto& [own, parameter] : each.module->named_parameters()) {
      if (own != name) continue;
      auto [of, is_new] = slices_of_.try_emplace(parameter.id());
      if (is_new) of->second = {parameter, cut_parameter(parameter, nn::join(each.path, name), how, *slices_)};
      nn::replace_parameter(*each.module, name, of->second.slices);
      return of->second.slices;
    }
    return {};
  }

  struct CutParameter {
    std::optional<nn::Parameter> whole;  // so that its id is not used again
    std::vector<nn::Parameter> slices;
  };
  std::shared_ptr<const TensorSlices> slices_;
  std::map<const nn::TensorSlot*, CutParameter> slices_of_;
};

std::int64_t bytes_of_parameters(const nn::Module& module) {
  std::int64_t bytes = 0;
  for (const nn::Parameter& parameter : module.parameters())
    bytes += parameter.master().numel() * static_cast<std::int64_t>(item_size(parameter.master().dtype()));
  return bytes;
}

// The linear layer at the end of a region; null: the module is none and has none.
const nn::Linear* last_linear(const StyledModule& each) {
  if (style_of<AttentionParallel>(each)) return &dynamic_cast<const nn::MultiheadAttention&>(*each.module).out_proj;
  return style_of<RowwiseParallel>(each) ? &linear_of(each) : nullptr;
}

// Numbers of the parameters that are whole on every rank, which uses them for its positions.
std::int64_t parameters_on_pieces(const StyledModule& each) {
  std::int64_t numbers = 0;
  if (style_of<SequenceParallel>(each)) {
    for (const nn::Parameter& parameter : each.module->parameters())
      numbers += parameter.master().requires_grad() ? parameter.master().numel() : 0;
  } else if (const nn::Linear* const last = last_linear(each); last && last->bias.master().defined()) {
    numbers = last->bias.master().requires_grad() ? last->bias.master().numel() : 0;
  }
  return numbers;
}

TensorPlan::Layer layer_of(const StyledModule& each, const TensorSlices& slices, std::set<const nn::Module*>& entered) {
  TensorPlan::Layer layer{.path = each.path, .style = name_of(each.style), .first = slices.first()};
  if (style_of<AttentionParallel>(each)) {
    const std::int64_t width = dynamic_cast<const nn::MultiheadAttention&>(*each.module).out_proj.weight->size(0);
    layer.columns = layer.summed_outputs = layer.summed_inputs = width;
    return layer;
  }
  const Shape& shape = weight_of(each).master().shape();
  if (dynamic_cast<const nn::Embedding*>(each.module)) {
    layer.columns = shape[0];
    layer.summed_outputs = shape[1];
  } else if (style_of<RowwiseParallel>(each)) {
    layer.columns = shape[1];
    layer.summed_outputs = shape[0];
  } else {
    layer.columns = shape[0];
    layer.summed_inputs = entered.insert(each.parent).second ? shape[1] : 0;
    const auto* const column = style_of<ColwiseParallel>(each);
    const auto* const vocabulary = style_of<VocabParallel>(each);
    if (column) layer.parts = column->parts, layer.columns *= column->repeat;  // of all slices
    if (column && column->gather_output) layer.gathered_outputs = shape[0];
    if (vocabulary && vocabulary->gather_output)  // the last slice is padded
      layer.gathered_outputs = slices.count * rows_of_slice(shape[0], 0, slices.count).count;
  }
  return layer;
}

// Lines that all ranks must have in common.
std::vector<std::string> texts_of(const TensorSlices& slices, const std::vector<StyledModule>& styled) {
  std::vector<std::string> texts{
      fmt::format("{} slices{}", slices.count, slices.cuts_sequence ? ", .sequence_parallel" : "")};
  for (const StyledModule& each : styled) {
    std::string text = fmt::format("{} {}", each.path, name_of(each.style));
    if (const auto* const column = style_of<ColwiseParallel>(each))
      text += fmt::format(" of {} parts, repeat {}{}", column->parts, column->repeat,
                          column->gather_output ? ", gathered" : "");
    if (const auto* const vocabulary = style_of<VocabParallel>(each))
      text += vocabulary->gather_output ? ", gathered" : "";
    for (const auto& [name, parameter] : each.module->named_parameters())
      text += fmt::format(", {} {} {}", name, parameter.master().shape().to_string(),
                          lockstep::name(parameter.master().dtype()));
    texts.push_back(std::move(text));
  }
  return texts;
}

// The modules of the plan. Throws InvalidArgument if it does not fit the model.
std::vector<StyledModule> checked_plan(nn::Module& module, const TensorSlices& slices,
                                       const TensorParallelOptions& options) {
  std::vector<StyledModule> styled = styled_modules(kOp, module, options.plan);
  check_model(module, styled);
  for (const StyledModule& each : styled) {
    if (const auto* const column = style_of<ColwiseParallel>(each)) check_colwise(each, *column, slices.count);
    if (style_of<RowwiseParallel>(each)) check_rowwise(each, slices.count);
    if (style_of<VocabParallel>(each)) check_vocabulary(each, slices.count);
    if (style_of<AttentionParallel>(each)) check_attention(kOp, each, styled, slices.count);
  }
  check_regions(styled);
  if (options.sequence_parallel && slices.count > 1) check_all_styled(module, styled);
  check_ties(module, styled);
  const auto cuts = [](const StyledModule& each) { return !cut_weights(each).empty(); };
  LOCKSTEP_CHECK(
      slices.count == 1 || std::ranges::any_of(styled, cuts),
      "{}: {} tensor slices, but .plan cuts no module; name linear layers ColwiseParallel and RowwiseParallel, "
      "or use 1 slice",
      kOp, slices.count);
  return styled;
}

}  // namespace

TensorPlan parallelize(nn::Module& module, const DeviceMesh& axis, const TensorParallelOptions& options) {
  const std::shared_ptr<const TensorSlices> slices = slices_of(axis, options.tensor_slices, options.sequence_parallel);
  std::vector<StyledModule> styled;
  on_all_ranks(slices->group.get(), [&] { styled = checked_plan(module, *slices, options); });
  if (slices->group) {
    check_same_texts("parallelize: ranks have different options", texts_of(*slices, styled), *slices->group);
    check_same_tensors(kOp, module, *slices->group);
    share_values(kOp, module, *slices->group);
  }

  for (const StyledModule& each : styled) {
    if (style_of<Recompute>(each)) recompute(*each.module);
  }
  TensorPlan plan{.slices = slices->count, .ranks = slices->ranks(), .whole_bytes = bytes_of_parameters(module)};
  if (slices->count > 1) {
    prepare_inner_modules(module, styled, slices);
    std::set<const nn::Module*> entered;
    std::vector<nn::Module*> parents;
    for (const StyledModule& each : styled) {
      if (style_of<Recompute>(each)) continue;
      if (slices->cuts_sequence) plan.summed_parameters += parameters_on_pieces(each);
      if (style_of<SequenceParallel>(each)) {
        if (slices->cuts_sequence)
          nn::add_runner(*each.module, std::make_shared<const PiecesRunner>(slices, *each.module));
        continue;
      }
      plan.layers.push_back(layer_of(each, *slices, entered));
      nn::Module* const runs_region = style_of<AttentionParallel>(each) ? each.module : each.parent;
      if (std::ranges::find(parents, runs_region) == parents.end()) parents.push_back(runs_region);
    }
    Cutter cutter(slices);
    for (const StyledModule& each : styled) cutter.cut(each);
    if (slices->cuts_sequence && std::ranges::find(parents, &module) == parents.end()) parents.push_back(&module);
    std::vector<nn::TensorHandle> shared = whole_tensors(module);  // one of the runners keeps them
    for (nn::Module* parent : parents)
      nn::add_runner(*parent,
                     std::make_shared<const RegionRunner>(slices, parent == &module, std::exchange(shared, {})));
  }
  plan.parameter_bytes = bytes_of_parameters(module);
  return plan;
}

std::int64_t TensorPlan::bytes_per_micro_batch(std::int64_t positions) const {
  std::int64_t bytes = 2 * (ranks - 1) * summed_parameters * 4 / ranks;
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
    const std::int64_t columns = layer.columns / layer.parts, each = (columns + slices - 1) / slices;
    text += fmt::format("{:<{}}  {:<16} {} to {} of {}{}\n", layer.path, longest, layer.style, layer.first * each,
                        std::min(columns, (layer.first + slices / ranks) * each) - 1, columns,
                        layer.parts > 1 ? fmt::format(", in each of {} parts", layer.parts) : "");
  }
  const std::int64_t fixed = bytes_per_micro_batch(0);
  return text + fmt::format("a micro-batch of n positions sends {} n{} bytes, in forward and backward\n",
                            bytes_per_micro_batch(1) - fixed, fixed > 0 ? fmt::format(" + {}", fixed) : "");
}

}  // namespace lockstep::parallel
