// Forward hooks and runners of modules. A module that has never had one has a null pointer, which operator() tests.
#include <atomic>
#include <mutex>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/module_runner_internal.h"

namespace lockstep::nn {

// Each run of forward copies a list before it calls the hooks, so that a hook may remove hooks, itself included, while
// other threads run the same module.
struct Module::Hooks {
  template <class Hook>
  using List = std::vector<std::shared_ptr<const Hook>>;
  std::mutex mutex;
  List<ForwardPreHook> before;
  List<ForwardHook> after;
  std::vector<std::shared_ptr<const ModuleRunner>> runners;  // the outermost first

  template <class Hook>
  List<Hook> copy(List<Hook> Hooks::*list) {
    const std::lock_guard lock(mutex);
    return this->*list;
  }
  template <class Hook>
  static HookHandle add(const char* op, std::shared_ptr<Hooks>& hooks, List<Hook> Hooks::*list, Hook hook) {
    LOCKSTEP_CHECK(hook, "{}: the hook is empty; pass a function", op);
    if (!hooks) hooks = std::make_shared<Hooks>();
    const auto added = std::make_shared<const Hook>(std::move(hook));
    const std::lock_guard lock(hooks->mutex);
    (hooks.get()->*list).push_back(added);
    return HookHandle([owner = std::weak_ptr<Hooks>(hooks), list, added = std::weak_ptr<const Hook>(added)] {
      const std::shared_ptr<Hooks> hooks = owner.lock();
      if (!hooks) return;
      const std::shared_ptr<const Hook> hook = added.lock();  // destroyed after the lock is released
      const std::lock_guard lock(hooks->mutex);
      std::erase(hooks.get()->*list, hook);
    });
  }
};

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  return Hooks::add("register_forward_pre_hook", current().hooks_, &Hooks::before, std::move(hook));
}

HookHandle Module::register_forward_hook(ForwardHook hook) {
  return Hooks::add("register_forward_hook", current().hooks_, &Hooks::after, std::move(hook));
}

Tensor Module::forward_with_hooks(std::vector<Tensor> inputs, bool is_single) const {
  for (const auto& hook : hooks_->copy(&Hooks::before)) {
    std::vector<Tensor> changed = (*hook)(*this, inputs);
    if (!changed.empty()) inputs = std::move(changed);
  }
  const auto own_forward = [&](const std::vector<Tensor>& x) {
    return is_single && x.size() == 1 ? forward(x[0]) : forward_inputs(x);
  };
  const std::vector<std::shared_ptr<const ModuleRunner>> runners = hooks_->runners;  // forward may change them
  Tensor y = run_inside(runners, inputs, {own_forward, is_single});
  for (const auto& hook : hooks_->copy(&Hooks::after)) {
    Tensor changed = (*hook)(*this, inputs, y);
    if (changed.defined()) y = std::move(changed);
  }
  return y;
}

void add_runner(Module& module, std::shared_ptr<const ModuleRunner> runner) {
  auto& hooks = module.current().hooks_;
  if (!hooks) hooks = std::make_shared<Module::Hooks>();
  hooks->runners.push_back(std::move(runner));
}

void remove_runner(Module& module, const ModuleRunner* runner) {
  const auto& hooks = module.current().hooks_;
  if (!hooks) return;
  std::erase_if(hooks->runners, [&](const auto& each) { return each.get() == runner; });
}

std::vector<std::shared_ptr<const ModuleRunner>> runners_of(const Module& module) {
  const auto& hooks = module.current().hooks_;
  return hooks ? hooks->runners : std::vector<std::shared_ptr<const ModuleRunner>>();
}

void set_runners(Module& module, const std::vector<std::shared_ptr<const ModuleRunner>>& runners) {
  for (const auto& each : runners_of(module)) remove_runner(module, each.get());
  for (const auto& each : runners) add_runner(module, each);
}

ReplacedCalls::ReplacedCalls(Module& module, std::shared_ptr<const ModuleRunner> runner)
    : module_(current_module(module)), own_(std::exchange(module_.hooks_, std::make_shared<Module::Hooks>())) {
  module_.hooks_->runners.push_back(std::move(runner));
}
ReplacedCalls::~ReplacedCalls() { module_.hooks_ = std::move(own_); }

Tensor run_inside(std::span<const std::shared_ptr<const ModuleRunner>> runners, const std::vector<Tensor>& inputs,
                  ModuleRunner::Forward forward) {
  if (runners.empty()) return forward(inputs);
  const auto rest = [&](const std::vector<Tensor>& x) { return run_inside(runners.subspan(1), x, forward); };
  return runners[0]->run(inputs, {rest, forward.takes_one});
}

namespace {
constinit std::atomic<int> runners{0};
}  // namespace

ModuleRunner::ModuleRunner() { runners.fetch_add(1, std::memory_order_relaxed); }
ModuleRunner::~ModuleRunner() { runners.fetch_sub(1, std::memory_order_relaxed); }
bool ModuleRunner::exists() { return runners.load(std::memory_order_relaxed) > 0; }

}  // namespace lockstep::nn
