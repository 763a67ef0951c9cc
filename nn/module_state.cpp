// Module: conversion to devices and dtypes, state_dict.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/initial_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/replace_elements_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"

namespace lockstep::nn {
namespace {

// Throws InvalidArgument if a parameter is in a stage of a pipeline, before anything is changed.
void check_can_convert(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.sharding() != Sharding::kStage,
                   "Module::to: the parameters are those of one stage of a pipeline, and other ranks have the others; "
                   "convert the model before the Pipeline is constructed");
  }
}

template <class Convert>
void convert_all(const Module& module, const Convert& convert) {
  const NoGradGuard no_grad;
  for (const Parameter& parameter : module.parameters()) {
    const Tensor& tensor = parameter.master();
    const Tensor fresh = convert(tensor.detach());
    if (fresh.impl().storage == tensor.impl().storage) continue;
    const Tensor grad = tensor.grad();
    replace_without_grad(tensor, fresh);
    if (grad.defined()) tensor.set_grad(convert(grad));
  }
  for (const Buffer& buffer : module.buffers()) buffer.set_master(convert(buffer.master()));
}

}  // namespace

void replace_elements(const Tensor& tensor, const Tensor& fresh) {
  TensorImpl& impl = tensor.impl();
  const TensorImpl& from = fresh.impl();
  LOCKSTEP_CHECK(impl.shape == from.shape, "replace_elements: {} by {}; both need one shape", describe(tensor),
                 describe(fresh));
  impl.storage = from.storage;
  impl.offset = from.offset;
  impl.strides = from.strides;
  impl.dtype = from.dtype;
  impl.contiguous = from.contiguous;
}

void replace_without_grad(const Tensor& tensor, const Tensor& fresh) {
  if (autograd::History* history = autograd::history(tensor)) {
    history->grad = Tensor();
    history->view = Tensor();  // a bucket view of the old dtype and device
  }
  replace_elements(tensor, fresh);
}

void materialize(Module& module, Device device) {
  convert_all(module,
              [&](const Tensor& tensor) { return is_deferred(tensor) ? initial_values(tensor, device) : tensor; });
}

bool matches(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) return path.empty();
  if (pattern[0] != '*') return !path.empty() && path[0] == pattern[0] && matches(pattern.substr(1), path.substr(1));
  for (std::size_t taken = 0;; ++taken) {
    if (matches(pattern.substr(1), path.substr(taken))) return true;
    if (taken == path.size() || path[taken] == '.') return false;
  }
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view path) {
  const auto describes = [&](const std::string& pattern) {
    for (std::size_t end = path.size(); end != std::string_view::npos;
         end = end > 0 ? path.rfind('.', end - 1) : end - 1) {
      if (matches(pattern, path.substr(0, end))) return true;
    }
    return false;
  };
  return patterns.empty() || std::ranges::any_of(patterns, describes);
}

std::string quoted_name(std::string_view name) { return lockstep::in_quotes(name, 120); }

std::string enumerate(const std::vector<std::string>& names, std::size_t shown) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < shown; ++i) text += (i ? ", " : "") + quoted_name(names[i]);
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

void Module::to(Device device) {
  for (const Parameter& parameter : parameters()) {
    if (is_deferred(parameter.master())) throw_deferred();
  }
  check_can_convert(parameters());
  convert_all(*this, [&](const Tensor& tensor) { return tensor.to(device); });
}

void Module::to(DType dtype) {
  LOCKSTEP_CHECK(lockstep::is_floating_point(dtype), "{}: to({}): parameters need a floating-point dtype", type_name(),
                 lockstep::name(dtype));
  check_can_convert(parameters());
  convert_all(*this, [&](const Tensor& tensor) {
    if (is_deferred(tensor)) return deferred_as(tensor, dtype);
    return tensor.is_floating_point() ? tensor.to(dtype) : tensor;
  });
}

std::string slice_name(const std::string& name, const ParameterSlice& slice) {
  return fmt::format("{}[{}/{}]", name, slice.index, slice.of);
}

void refuse_parts(const char* op, const std::vector<Parameter>& parameters, const char* fix) {
  for (const Parameter& parameter : parameters) {
    if (const ParameterSlice* const slice = parameter.slice())
      throw InvalidArgument(fmt::format("{}: {} is slice {} of {} of a parameter that tensor parallelism has cut; {}",
                                        op, slice_name(slice->name, *slice), slice->index, slice->of, fix));
    LOCKSTEP_CHECK(parameter.sharding() != Sharding::kStage,
                   "{}: the parameters are those of one stage of a pipeline, and other ranks have the others; {}", op,
                   fix);
  }
}

void set_parameter(Module& module, const std::string& name, const Parameter& parameter) {
  auto& entries = module.parameters_;
  const auto found = std::ranges::find_if(entries, [&](const auto& entry) { return entry.name == name; });
  LOCKSTEP_CHECK(found != entries.end(), "set_parameter: {} has no parameter {}", module.type_name(), name);
  module.rebind(&Module::parameters_, name, parameter);
}

void replace_parameter(Module& module, const std::string& name, const std::vector<Parameter>& slices) {
  auto& entries = module.parameters_;
  const auto found = std::ranges::find_if(entries, [&](const auto& entry) { return entry.name == name; });
  LOCKSTEP_CHECK(found != entries.end(), "replace_parameter: {} has no parameter {}", module.type_name(), name);
  const Parameter whole = *found->handle;  // an optimizer may have it
  whole.set_sharding(Sharding::kCut);
  whole.set_slice(*slices.at(0).slice());
  module.rebind(&Module::parameters_, name, Parameter(Tensor()));
  auto place = found + 1;
  for (const Parameter& slice : slices) {
    const std::string listed = slice_name(name, *slice.slice());
    place = entries.insert(place, {listed, std::make_unique<Parameter>(slice)}) + 1;
  }
}

StateDict Module::state_dict() const {
  refuse_parts("state_dict", parameters(),
               "save with parallel::save_checkpoint, or read whole parameters inside run.gathered");
  return listed_state(*this);
}

std::string ListedTensor::whole_name() const {
  return slice ? name.substr(0, name.size() - slice_name("", *slice).size()) : name;
}

std::vector<ListedTensor> listed_tensors(const Module& of) {
  std::vector<ListedTensor> list;
  of.visit("", [&](const std::string& path, const Module& module) {
    const auto add = [&](const auto& entries) {
      for (const auto& [name, handle] : entries) {
        if (!handle->master().defined()) continue;
        list.push_back({.name = join(path, name),
                        .tensor = handle->master().detach(),
                        .slice = handle->slice(),
                        .id = handle->id()});
      }
    };
    add(module.parameters_);
    add(module.buffers_);
  });
  return list;
}

StateDict listed_state(const Module& module) {
  StateDict dict;
  for (ListedTensor& each : listed_tensors(module)) dict.insert(each.name, std::move(each.tensor));
  return dict;
}

}  // namespace lockstep::nn
