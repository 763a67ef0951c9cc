#include "lockstep/parallel/model_parallel/styles.h"

#include <algorithm>
#include <map>
#include <typeinfo>

#include <fmt/ranges.h>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/attention.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"

namespace lockstep::parallel {
namespace {

struct Named {
  std::string path;
  nn::Module* module;
  nn::Module* parent;
};

void list(nn::Module& parent, const std::string& path, std::vector<Named>& found) {
  for (nn::Module* child : parent.children()) {
    const std::string own = nn::join(path, child->name());
    found.push_back({own, child, &parent});
    list(*child, own, found);
  }
}

// All modules below `module`, in the order of the model.
std::vector<Named> all_below(nn::Module& module) {
  std::vector<Named> all;
  list(module, "", all);
  return all;
}

std::vector<Named> named_by(const std::string& pattern, nn::Module& module) {
  std::vector<Named> all = all_below(module);
  std::erase_if(all, [&](const Named& each) { return !nn::matches(pattern, each.path); });
  return all;
}

struct StyleName {
  const char* style;
  const char* types;  // of the modules it is for; null: all
};
constexpr StyleName kNames[] = {{"ColwiseParallel", "Linear"},
                                {"RowwiseParallel", "Linear"},
                                {"VocabParallel", "Embedding or Linear"},
                                {"SequenceParallel", nullptr},
                                {"AttentionParallel", "MultiheadAttention"},
                                {"Recompute", nullptr}};

// A class of the user's own is refused, because it may have another forward.
bool fits(const ParallelStyle& style, const nn::Module& module) {
  const std::type_info& type = typeid(module);
  const bool is_linear = type == typeid(nn::Linear);
  if (std::holds_alternative<ColwiseParallel>(style) || std::holds_alternative<RowwiseParallel>(style))
    return is_linear;
  if (std::holds_alternative<VocabParallel>(style)) return is_linear || type == typeid(nn::Embedding);
  return !std::holds_alternative<AttentionParallel>(style) || type == typeid(nn::MultiheadAttention);
}

}  // namespace

bool is_in(const std::string& path, const std::string& above) { return path == above || path.starts_with(above + "."); }

const char* name_of(const ParallelStyle& style) { return kNames[style.index()].style; }

std::string choice_of(const std::vector<std::int64_t>& numbers) {
  if (numbers.size() == 1) return fmt::format("{}", numbers[0]);
  return fmt::format("{} or {}", fmt::join(numbers.begin(), numbers.end() - 1, ", "), numbers.back());
}

std::vector<StyledModule> styled_modules(const char* op, nn::Module& module, const ParallelPlan& plan) {
  std::map<const nn::Module*, std::pair<std::string, ParallelStyle>> styles;  // with their patterns
  for (const auto& [pattern, style] : plan) {
    const std::vector<Named> modules = named_by(pattern, module);
    LOCKSTEP_CHECK(
        !modules.empty(),
        "{}: .plan: pattern \"{}\" names no module; paths are those of named_parameters() without the last name", op,
        pattern);
    for (const Named& each : modules) {
      LOCKSTEP_CHECK(fits(style, *each.module), "{}: pattern \"{}\" names {}; {} is for {}", op, pattern,
                     each.module->type_name(), name_of(style), kNames[style.index()].types);
      const auto [first, is_new] = styles.emplace(each.module, std::pair(pattern, style));
      LOCKSTEP_CHECK(is_new, "{}: {} has two styles, by the patterns \"{}\" and \"{}\"", op, each.path,
                     first->second.first, pattern);
    }
  }
  std::vector<StyledModule> found;
  for (const Named& each : all_below(module)) {
    if (const auto style = styles.find(each.module); style != styles.end())
      found.push_back({each.path, each.module, each.parent, style->second.second});
  }
  return found;
}

namespace {

void check_all_in_chain(const char* op, const nn::Module& module, const std::vector<ChainModule>& chain) {
  const auto check = [&](const std::string& name, const char* what) {
    const std::string owner(nn::module_path(name));
    LOCKSTEP_CHECK(std::ranges::any_of(chain, [&](const ChainModule& link) { return is_in(owner, link.path); }),
                   "{}: {} has {} and is in no module of .chain, so no stage would run it; {}", op,
                   owner.empty() ? "the model itself" : owner, what,
                   owner.empty() ? "move them to a child" : "name it in .chain, or remove it from the model");
  };
  for (const auto& [name, parameter] : module.named_parameters()) check(name, "parameters");
  for (const auto& [name, buffer] : module.named_buffers()) check(name, "buffers");
}

}  // namespace

std::vector<ChainModule> chain_of(const char* op, nn::Module& module, const std::vector<std::string>& patterns) {
  std::vector<ChainModule> chain;
  LOCKSTEP_CHECK(
      !patterns.empty() || dynamic_cast<nn::Sequential*>(&module),
      "{}: .chain is empty and {} is not a Sequential, whose children would be the chain; name the modules in the "
      "order in which they run: .chain = {{\"embed\", \"blocks.*\", \"head\"}}",
      op, module.type_name());
  for (const std::string& pattern : patterns.empty() ? std::vector<std::string>{"*"} : patterns) {
    const std::vector<Named> modules = named_by(pattern, module);
    LOCKSTEP_CHECK(!modules.empty(),
                   "{}: .chain: \"{}\" names no module; paths are those of named_parameters() without the last name",
                   op, pattern);
    for (const auto& [path, each, parent] : modules) {
      for (const ChainModule& other : chain)
        LOCKSTEP_CHECK(!is_in(path, other.path) && !is_in(other.path, path),
                       "{}: .chain names {} twice, the second time by \"{}\"; name each module once", op,
                       path.size() > other.path.size() ? path : other.path, pattern);
      chain.push_back({path, each});
    }
  }
  check_all_in_chain(op, module, chain);
  return chain;
}

}  // namespace lockstep::parallel
