#include <cxxabi.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/warning.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::nn {
namespace {

template <class Handle>
std::vector<Handle> without_names(std::vector<std::pair<std::string, Handle>> named) {
  std::vector<Handle> handles;
  handles.reserve(named.size());
  for (auto& entry : named) handles.push_back(std::move(entry.second));
  return handles;
}

// The number of the site where a module draws (tensor/random/random.h): the hash of its path.
std::uint64_t site_of(const std::string& path) {
  return std::max(XXH3_64bits(path.data(), path.size()) >> (64 - random::kSiteBits), random::kInitialSite + 1);
}

}  // namespace

Module::~Module() {
  for (const auto& child : children_) child->parent_ = nullptr;  // it may have other owners
}

Module::Module(Module&& other) {
  LOCKSTEP_CHECK(!other.replacement_,
                 "{}: cannot be moved, as replace() has put another module in its place; move what replace() returned",
                 other.type_name());
  *this = std::move(other);
}

Module& Module::operator=(Module&& other) noexcept {
  children_ = std::move(other.children_);
  for (const auto& child : children_) child->parent_ = this;
  parameters_ = std::move(other.parameters_);
  buffers_ = std::move(other.buffers_);
  hooks_ = std::move(other.hooks_);
  training_ = other.training_;
  return *this;
}

const Module& Module::root() const { return parent_ ? parent_->root() : *this; }

// "blocks.0.attention": the names from below `ancestor` down to this module; from the root if it is no ancestor.
std::string Module::path_below(const Module* ancestor) const {
  if (this == ancestor || !parent_) return {};
  return join(parent_->path_below(ancestor), name_);
}

void Module::check_name(const std::string& name) const {
  if (replacement_) return current().check_name(name);
  LOCKSTEP_CHECK(!name.empty(), "{}: the name of a child, parameter or buffer is empty", type_name());
  LOCKSTEP_CHECK(name.find('.') == std::string::npos, "{}: the name {} contains '.', which separates modules in paths",
                 type_name(), lockstep::in_quotes(name));
  const auto is_child = [&](const auto& child) { return child->name_ == name; };
  const auto is_entry = [&](const auto& entry) { return entry.name == name; };
  const char* kind = std::ranges::any_of(children_, is_child)     ? "child"
                     : std::ranges::any_of(parameters_, is_entry) ? "parameter"
                     : std::ranges::any_of(buffers_, is_entry)    ? "buffer"
                                                                  : nullptr;
  LOCKSTEP_CHECK(!kind, "{}: there is a {} named {} already", type_name(), kind, lockstep::in_quotes(name));
  LOCKSTEP_CHECK(!InTrainingMode::holds(*this),
                 "{}: {} would be added to a model that a training mode holds, which would neither train nor share it\n"
                 "Add it before, and construct the mode afterwards",
                 type_name(), lockstep::in_quotes(name));
}

Module& Module::add_child(const std::string& name, std::shared_ptr<Module> child) {
  if (replacement_) return current().add_child(name, std::move(child));
  check_name(name);
  LOCKSTEP_CHECK(child, "{}: the child {} is null", type_name(), lockstep::in_quotes(name));
  LOCKSTEP_CHECK(!child->parent_,
                 "{}: the new child {} is already the child {} of {}, and a module has one parent\nConstruct another "
                 "one; to share parameters, pass their handles to add_parameter",
                 type_name(), lockstep::in_quotes(name), lockstep::in_quotes(child->name_),
                 child->parent_->type_name());
  LOCKSTEP_CHECK(child.get() != &root(), "{}: the new child {} is the model itself", type_name(),
                 lockstep::in_quotes(name));
  child->name_ = name;
  child->label_ = name + " " + child->type_name();
  child->parent_ = this;
  children_.push_back(std::move(child));
  return *children_.back();
}

Parameter& Module::add_parameter(const std::string& name, const Tensor& tensor) {
  return add_parameter(name, Parameter(tensor));
}

Parameter& Module::add_parameter(const std::string& name, const Parameter& parameter) {
  check_name(name);
  auto& entries = current().parameters_;
  entries.push_back({name, std::make_unique<Parameter>(parameter)});
  return *entries.back().handle;
}

Parameter& Module::register_parameter(const std::string& name, const Tensor& tensor, bool requires_grad) {
  Parameter& parameter = add_parameter(name, tensor);
  if (!requires_grad && tensor.defined()) parameter->requires_grad_(false);
  return parameter;
}

Buffer& Module::add_buffer(const std::string& name, const Tensor& tensor) { return add_buffer(name, Buffer(tensor)); }

Buffer& Module::add_buffer(const std::string& name, const Buffer& buffer) {
  check_name(name);
  auto& entries = current().buffers_;
  entries.push_back({name, std::make_unique<Buffer>(buffer)});
  return *entries.back().handle;
}

Tensor Module::forward(const Tensor&) const {
  throw InvalidArgument(type_name() +
                        ": forward(const Tensor&) const is not overridden; override it, or call the module's own "
                        "methods\nIf it takes several inputs: module({x, y}), and summary(shape, {.more_inputs = "
                        "{other_shape}})");
}

Tensor Module::forward_inputs(const std::vector<Tensor>& inputs) const {
  LOCKSTEP_CHECK(inputs.size() == 1,
                 "{}: called with {} inputs, but forward takes one; override "
                 "forward_inputs(const std::vector<Tensor>&) const",
                 type_name(), inputs.size());
  return forward(inputs[0]);
}

// A module without parameters and buffers needs no registration, unless its mode matters.
void Module::warn_unregistered(const Module& root) const {
  if (parameters().empty() && buffers().empty() && !dynamic_cast<const Dropout*>(this)) return;
  const std::string type = type_name(), parent = root.type_name();
  warn("Module", fmt::format("{0}: runs in the forward of {1}, but no add() has registered it: parameters(), "
                             "state_dict(), train() and to() of {1} leave it out\n"
                             "Register it: {0}& x = add<{0}>(\"x\", ...), or add(\"x\", {0}(...))",
                             type, parent));
}

// Runs `forward`, adds the module's path to errors, and records the output's shape for summary().
template <class Forward>
Tensor Module::run(const Forward& forward) const {
  const random::SiteGuard site(
      this,
      [](const void* called, const void* module) {
        return site_of(static_cast<const Module*>(module)->path_below(static_cast<const Module*>(called)));
      },
      [](const void* module) {
        const auto& self = *static_cast<const Module*>(module);
        const std::string path = self.path_below(nullptr);
        return path.empty() ? self.type_name() : fmt::format("{} ({})", path, self.type_name());
      });
  const auto* const caller = static_cast<const Module*>(site.outer_module());
  if (!parent_ && caller && &caller->root() != this) [[unlikely]]
    warn_unregistered(caller->root());
  try {
    const TraceSpan span(TraceKind::kForward, label_.empty() ? "model" : std::string_view(label_));
    Tensor y = forward();
    if (traced_output_ && y.defined()) [[unlikely]]
      *traced_output_ = y.shape();
    return y;
  } catch (Error& error) {
    if (parent_) error.add_module(path_below(caller));
    throw;
  }
}

Tensor Module::operator()(const Tensor& x) const {
  if (replacement_) [[unlikely]]
    return called()(x);
  return run([&] { return hooks_ ? forward_with_hooks({x}, /*is_single=*/true) : forward(x); });
}

Tensor Module::operator()(const std::vector<Tensor>& inputs) const {
  if (replacement_) [[unlikely]]
    return called()(inputs);
  return run([&] { return hooks_ ? forward_with_hooks(inputs, /*is_single=*/false) : forward_inputs(inputs); });
}

Tensor run_without_hooks(const Module& module, const std::vector<Tensor>& inputs) {
  const auto forward = [&](const std::vector<Tensor>& x) { return module.current().forward_inputs(x); };
  return module.current().run([&] { return run_inside(runners_of(module), inputs, forward); });
}

std::string Module::type_name() const {
  const Module& self = current();
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(typeid(self).name(), nullptr, nullptr, &status),
                                                    std::free);
  std::string name = status == 0 ? text.get() : typeid(self).name();
  if (name.ends_with('>')) {  // without template arguments
    int depth = 0;
    do depth += name.back() == '>' ? 1 : name.back() == '<' ? -1 : 0, name.pop_back();
    while (depth > 0 && !name.empty());
  }
  const std::size_t scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

std::vector<Module*> Module::children() const {
  std::vector<Module*> list;
  for (const auto& child : owned_children()) list.push_back(child.get());
  return list;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> list;
  visit("", [&](const std::string& path, const Module& module) {
    list.emplace_back(path, const_cast<Module*>(&module));  // safe: this function is not const, only visit is
  });
  return list;
}

std::vector<Module*> Module::modules() {
  std::vector<Module*> list = {&current()};
  for (const auto& child : owned_children()) {
    const std::vector<Module*> below = child->modules();
    list.insert(list.end(), below.begin(), below.end());
  }
  return list;
}

void Module::apply(FunctionRef<void(Module&)> function) {
  for (Module* const module : modules()) function(*module);
}

template <class Handle>
std::vector<std::pair<std::string, Handle>> Module::list(std::vector<Named<Handle>> Module::*entries) const {
  std::vector<std::pair<std::string, Handle>> named;
  std::unordered_set<const TensorSlot*> seen;  // a tied parameter is listed once
  visit("", [&](const std::string& path, const Module& module) {
    for (const auto& [name, handle] : module.*entries) {
      if (handle->master().defined() && seen.insert(handle->id()).second) named.emplace_back(join(path, name), *handle);
    }
  });
  return named;
}

std::vector<std::pair<std::string, Parameter>> Module::named_parameters() const { return list(&Module::parameters_); }
std::vector<std::pair<std::string, Buffer>> Module::named_buffers() const { return list(&Module::buffers_); }

std::vector<Parameter> Module::parameters() const { return without_names(named_parameters()); }
std::vector<Buffer> Module::buffers() const { return without_names(named_buffers()); }

void Module::train(bool on) {
  current().training_ = on;
  for (const auto& child : owned_children()) child->train(on);
}

void Module::zero_grad() {
  for (const Parameter& parameter : parameters()) parameter.master().set_grad(Tensor());
}

}  // namespace lockstep::nn
