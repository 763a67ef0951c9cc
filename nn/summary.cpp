// Module::summary.
#include <algorithm>
#include <array>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/module_internal.h"

namespace lockstep::nn {
namespace {

using Cells = std::array<std::string, 5>;

// 1234567 -> "1,234,567"
std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), 1, ',');
  return text;
}

std::string table(const std::vector<Cells>& rows) {
  std::array<std::size_t, 5> widths{};
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Cells& row : rows) {
    text += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}  {:>{}}\n", row[0], widths[0], row[1], widths[1], row[2],
                        widths[2], row[3], widths[3], row[4], widths[4]);
  }
  return text;
}

std::int64_t bytes(const Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(item_size(tensor.dtype()));
}

}  // namespace

std::string Module::summary(const Shape& input_shape, const SummaryOptions& options) {
  struct Part {
    std::string path;
    Module* module;
    bool was_training;
    std::optional<Shape> output;
  };
  std::vector<Part> parts;
  visit("", [&](const std::string& path, const Module& module) {
    auto* part = const_cast<Module*>(&module);  // safe: this function is not const, only visit is
    parts.push_back({path, part, module.training_, std::nullopt});
  });
  struct Restore {  // runs even if forward throws
    std::vector<Part>& parts;
    ~Restore() {
      for (const Part& part : parts) {
        part.module->training_ = part.was_training;
        part.module->traced_output_ = nullptr;
      }
    }
  };

  std::int64_t all_parameters = 0, all_bytes = 0;
  TensorOptions input{.dtype = options.dtype};
  for (const Parameter& parameter : parameters()) {
    all_parameters += parameter.master().numel();
    all_bytes += bytes(parameter.master());
    input.device = parameter.master().device();
    if (!input.dtype) input.dtype = parameter.master().dtype();
  }
  for (const Buffer& buffer : buffers()) all_bytes += bytes(buffer.master());
  {
    const Restore restore{parts};
    for (Part& part : parts) {
      part.module->training_ = false;
      part.module->traced_output_ = &part.output;
    }
    const NoGradGuard no_grad;
    std::vector<Tensor> inputs = {zeros(input_shape, input)};
    for (const Shape& shape : options.more_inputs) inputs.push_back(zeros(shape, input));
    inputs.size() == 1 ? (*this)(inputs[0]) : (*this)(inputs);
  }

  std::vector<Cells> rows = {{"module", "type", "output", "parameters", "bytes"}};
  for (const Part& part : parts) {
    std::int64_t count = 0, size = 0;
    for (const auto& entry : part.module->parameters_) {
      const Tensor& tensor = entry.handle->master();
      if (!tensor.defined()) continue;
      count += tensor.numel();
      size += bytes(tensor);
    }
    for (const auto& entry : part.module->buffers_) {
      if (entry.handle->master().defined()) size += bytes(entry.handle->master());
    }
    rows.push_back({part.path.empty() ? "(model)" : part.path, part.module->type_name(),
                    part.output ? part.output->to_string() : "-", grouped(count), grouped(size)});
  }
  rows.push_back({"total", "", "", grouped(all_parameters), grouped(all_bytes)});
  return table(rows);
}

}  // namespace lockstep::nn
