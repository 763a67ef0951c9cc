#include "lockstep/parallel/model_parallel/styles.h"

#include <algorithm>
#include <map>
#include <typeinfo>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/attention.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"

namespace lockstep::parallel {
namespace {

using Named = std::vector<std::pair<std::string, nn::Module*>>;

void list(nn::Module& module, const std::string& path, Named& found) {
  found.emplace_back(path, &module);
  for (nn::Module* child : module.children()) list(*child, nn::join(path, child->name()), found);
}

// The modules below `module` that the pattern names, in the order of the model.
Named named_by(const std::string& pattern, nn::Module& module) {
  Named all;
  list(module, "", all);
  std::erase_if(all, [&](const auto& each) { return each.first.empty() || !nn::matches(pattern, each.first); });
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

void check_plan(const char* op, nn::Module& module, const ParallelPlan& plan) {
  std::map<const nn::Module*, std::string> pattern_of;
  for (const auto& [pattern, style] : plan) {
    const Named modules = named_by(pattern, module);
    LOCKSTEP_CHECK(
        !modules.empty(),
        "{}: .plan: pattern \"{}\" names no module; paths are those of named_parameters() without the last name", op,
        pattern);
    const StyleName& name = kNames[style.index()];
    for (const auto& [path, each] : modules) {
      LOCKSTEP_CHECK(fits(style, *each), "{}: pattern \"{}\" names {}; {} is for {}", op, pattern, each->type_name(),
                     name.style, name.types);
      const auto [first, is_new] = pattern_of.emplace(each, pattern);
      LOCKSTEP_CHECK(is_new, "{}: {} has two styles, by the patterns \"{}\" and \"{}\"", op, path, first->second,
                     pattern);
    }
  }
}

void check_chain(const char* op, nn::Module& module, const std::vector<std::string>& chain) {
  if (chain.empty()) return;
  std::vector<std::string> links;
  const auto is_in = [](const std::string& path, const std::string& link) {
    return path == link || path.starts_with(link + ".");
  };
  for (const std::string& pattern : chain) {
    const Named modules = named_by(pattern, module);
    LOCKSTEP_CHECK(!modules.empty(),
                   "{}: .chain: \"{}\" names no module; paths are those of named_parameters() without the last name",
                   op, pattern);
    for (const auto& [path, each] : modules) {
      for (const std::string& other : links)
        LOCKSTEP_CHECK(!is_in(path, other) && !is_in(other, path), "{}: .chain names {} twice: \"{}\"", op,
                       path.size() > other.size() ? path : other, pattern);
      links.push_back(path);
    }
  }
  for (const auto& [name, parameter] : module.named_parameters()) {
    const std::string owner(nn::module_path(name));
    LOCKSTEP_CHECK(std::ranges::any_of(links, [&](const std::string& link) { return is_in(owner, link); }),
                   "{}: {} has parameters and is in no module of .chain: no stage would run it", op,
                   owner.empty() ? "the model itself" : owner);
  }
}

}  // namespace lockstep::parallel
