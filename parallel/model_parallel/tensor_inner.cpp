#include "lockstep/parallel/model_parallel/tensor_inner_internal.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/norm_layers.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/model_parallel/tensor_parts_internal.h"
#include "lockstep/parallel/model_parallel/tensor_region_internal.h"

namespace lockstep::parallel {
namespace {

using autograd::Gradients;
using autograd::Needs;

// The RowwiseParallel layers that end regions, by the path of the module whose forward has the region.
using Ends = std::map<std::string, std::string>;

random::SliceContext* open_context() {
  random::SliceContext* const context = random::slice_context();
  return context && context->is_open() ? context : nullptr;
}

// "between query (ColwiseParallel) and proj (RowwiseParallel)"
std::string place_of(const random::SliceContext& context, const Ends& ends) {
  const std::string parent(nn::module_path(context.opened_by));
  const auto end = ends.find(parent);
  return fmt::format("between {} (ColwiseParallel) and {} (RowwiseParallel)",
                     context.opened_by.substr(parent.empty() ? 0 : parent.size() + 1),
                     end == ends.end() ? "the next layer" : end->second);
}

[[noreturn]] void refuse(random::SliceContext& context, const std::string& message) {
  context.columns.clear();  // the region's hint about sizes does not apply
  throw InvalidArgument(message);
}

template <class Type>
bool is_a(const nn::Module& module) {
  return dynamic_cast<const Type*>(&module) != nullptr;
}

// Whether one of the names is of the module itself, and not of one below it.
template <class Named>
bool has_own(const Named& named) {
  return std::ranges::any_of(named, [](const auto& each) { return each.first.find('.') == std::string::npos; });
}

// --- modules without a style --------------------------------------------------------------------------------------

class InnerCheck final : public nn::ModuleRunner {
 public:
  InnerCheck(const nn::Module& module, const std::string& path, bool has_cut_layers, std::shared_ptr<const Ends> ends)
      : path_(path), has_cut_layers_(has_cut_layers), is_batch_norm_(is_a<nn::BatchNorm>(module)),
        has_parameters_(has_own(module.named_parameters())), buffers_(module.buffers()), ends_(std::move(ends)) {}

  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override {
    random::SliceContext* const context = open_context();
    if (!context) return forward(inputs);
    const std::string place = place_of(*context, *ends_);
    if (has_cut_layers_)
      refuse(*context, fmt::format("parallelize: {} has layers that are cut and runs {}, where activations are cut "
                                   "already; run it before or after these layers",
                                   path_, place));
    const std::string buffers = fmt::format(
        "parallelize: {} has buffers that training changes and runs {}; each rank would change them by its columns "
        "alone: run it before or after these layers, or use a module without such buffers",
        path_, place);
    if (is_batch_norm_) refuse(*context, buffers);
    if (has_parameters_)
      refuse(*context, fmt::format("parallelize: {} has parameters and runs {}; each rank would have a part of its "
                                   "gradient: name it SequenceParallel",
                                   path_, place));
    const std::vector<std::uint32_t> before = versions();
    Tensor y = forward(inputs);
    if (versions() != before) refuse(*context, buffers);
    return y;
  }

 private:
  std::vector<std::uint32_t> versions() const {
    std::vector<std::uint32_t> found;
    for (const nn::Buffer& buffer : buffers_) found.push_back(buffer->version());
    return found;
  }

  std::string path_;
  bool has_cut_layers_, is_batch_norm_, has_parameters_;
  std::vector<nn::Buffer> buffers_;
  std::shared_ptr<const Ends> ends_;
};

// --- SequenceParallel ---------------------------------------------------------------------------------------------

// The dimension of x in which this rank's slices lie one after another: its heads or its columns. Where another dimension
// is as long as the heads, they are the one whose elements are a head apart, if x is a view of the columns. -1: none, or
// several are possible.
std::int64_t slice_dimension(const random::SliceContext& context, const Tensor& x, std::int64_t slices) {
  const auto is_cut = [&](std::int64_t size, std::int64_t width) {
    return size % slices == 0 && context.has_run(width);
  };
  std::vector<std::int64_t> found;
  const std::int64_t last = x.dim() - 1;
  for (std::int64_t i = 1; i < last; ++i) {
    if (is_cut(x.size(i), x.size(i) * x.size(last))) found.push_back(i);
  }
  if (last >= 1 && is_cut(x.size(last), x.size(last))) found.push_back(last);
  const bool is_view =
      std::ranges::any_of(context.columns, [&](const auto& columns) { return columns.storage == x.impl().storage; });
  if (found.size() > 1 && is_view)
    std::erase_if(found, [&](std::int64_t i) { return x.strides()[static_cast<std::size_t>(i)] != x.size(last); });
  return found.size() == 1 || (slices == 1 && !found.empty()) ? found[0] : -1;
}

class SliceModuleRunner final : public nn::ModuleRunner {
 public:
  SliceModuleRunner(const nn::Module& module, const std::string& path, std::shared_ptr<const TensorSlices> slices,
                    std::shared_ptr<const Ends> ends)
      : path_(path), is_norm_(is_a<nn::LayerNorm>(module) || is_a<nn::RMSNorm>(module)),
        parameters_(module.parameters()), buffers_(module.buffers()), slices_(std::move(slices)),
        ends_(std::move(ends)) {}

  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override {
    random::SliceContext* const context = open_context();
    if (!context || inputs.empty())
      return forward(inputs);  // empty: by forward with other arguments, inside of this one
    if (inputs.size() != 1)
      refuse(*context, fmt::format("parallelize: {} is SequenceParallel and runs {}; called with {} inputs, expected 1",
                                   path_, place_of(*context, *ends_), inputs.size()));
    const std::int64_t dim = slice_dimension(*context, inputs[0], slices_->local());
    if (dim < 0) refuse_input(*context, inputs[0]);
    const std::vector<Tensor> parts = split_parts(inputs[0], dim, slices_->local());
    check_norm(*context, parts[0]);
    return join_parts(run_for_slices(slices_, parameters_, buffers_, parts, forward), dim);
  }

 private:
  [[noreturn]] void refuse_input(random::SliceContext& context, const Tensor& x) const {
    const std::int64_t run = context.columns.back().run;
    refuse(
        context,
        fmt::format("parallelize: {} is SequenceParallel and runs {}: x is {}; expected {} heads * dim in one "
                    "dimension and the last, (batch, time, heads, dim) or (batch, heads, time, dim), or (batch, time, "
                    "{}); in a copy of the columns no other dimension may be as long as the heads: use "
                    "reshape({{batch * time, heads, dim}})",
                    path_, place_of(context, *ends_), describe(x), run, run));
  }

  void check_norm(random::SliceContext& context, const Tensor& part) const {
    if (!is_norm_ || parameters_.empty()) return;
    const Shape shape = parameters_[0].tensor().shape();
    if (shape == Shape{part.size(-1)}) return;
    refuse(context,
           fmt::format("parallelize: {} runs {}, once for each slice: x of a slice is {}, and the norm has the "
                       "shape {}, whose statistics would need all slices; expected a norm of each head, ({})",
                       path_, place_of(context, *ends_), describe(part), shape.to_string(), part.size(-1)));
  }

  std::string path_;
  bool is_norm_;
  std::vector<nn::Parameter> parameters_;
  std::vector<nn::Buffer> buffers_;
  std::shared_ptr<const TensorSlices> slices_;
  std::shared_ptr<const Ends> ends_;
};

// --- the modules of a model ---------------------------------------------------------------------------------------

class Preparation {
 public:
  Preparation(const std::vector<StyledModule>& styled, const std::shared_ptr<const TensorSlices>& slices)
      : styled_(styled), slices_(slices) {
    Ends ends;
    for (const StyledModule& each : styled) {
      if (std::holds_alternative<RowwiseParallel>(each.style))
        ends.emplace(nn::module_path(each.path), each.module->name());
    }
    ends_ = std::make_shared<const Ends>(std::move(ends));
  }

  void visit(nn::Module& module, const std::string& path) {
    const StyledModule* const styled = style_of(module);
    if (styled && std::holds_alternative<SequenceParallel>(styled->style) && !is_a<nn::BatchNorm>(module)) {
      nn::add_runner(module, std::make_shared<const SliceModuleRunner>(module, path, slices_, ends_));
      return;  // the modules below it run inside it
    }
    const bool is_attention = styled && std::holds_alternative<AttentionParallel>(styled->style),
               is_cut = styled && (std::holds_alternative<ColwiseParallel>(styled->style) ||
                                   std::holds_alternative<RowwiseParallel>(styled->style)),
               has_cut_layers = is_attention || is_region(module);
    if (!is_cut && (has_cut_layers || has_own(module.named_parameters()) || has_own(module.named_buffers())))
      nn::add_runner(module, std::make_shared<const InnerCheck>(module, path, has_cut_layers, ends_));
    if (is_attention) return;  // out_proj is cut as well
    for (nn::Module* child : module.children()) visit(*child, nn::join(path, child->name()));
  }

 private:
  const StyledModule* style_of(const nn::Module& module) const {
    const auto found = std::ranges::find(styled_, &module, &StyledModule::module);
    return found == styled_.end() ? nullptr : &*found;
  }
  bool is_region(const nn::Module& module) const {
    return std::ranges::any_of(styled_, [&](const StyledModule& each) {
      return each.parent == &module && (std::holds_alternative<ColwiseParallel>(each.style) ||
                                        std::holds_alternative<RowwiseParallel>(each.style));
    });
  }

  const std::vector<StyledModule>& styled_;
  std::shared_ptr<const TensorSlices> slices_;
  std::shared_ptr<const Ends> ends_;
};

}  // namespace

void prepare_inner_modules(nn::Module& module, const std::vector<StyledModule>& styled,
                           const std::shared_ptr<const TensorSlices>& slices) {
  Preparation(styled, slices).visit(module, "");
}

}  // namespace lockstep::parallel
