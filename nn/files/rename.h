/// \file
/// Rename: the names of a file or state dict as those of a model.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"

namespace lockstep::nn {

/// How a file's names become those of a model: pairs of a pattern and its replacement, applied one after another, or a
/// function.
///
///     {{"model", ""}}                          // model.fc.weight    -> fc.weight
///     {{"h.*.ln_1", "blocks.*.norm1"}}         // h.11.ln_1.bias     -> blocks.11.norm1.bias
///     {{"h.*.attn.bias", ""}}                  // h.0.attn.bias      -> nothing: the tensor is left out
///     [](const std::string& name) { return "encoder." + name; }
///
/// A pattern stands for whole components of a name, which '.' separates, at the first place where it fits; '*' is any text
/// within one of them. Each '*' of the replacement is the text of the pattern's '*' in the same position.
/// A pattern may fit no name; errors for names that do not match name such a pattern.
class Rename {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;   ///< pattern and replacement
  using Function = Callback<std::string(const std::string& name)>;  ///< returns "" for a tensor to leave out

  Rename() = default;  ///< names stay
  /// Throws InvalidArgument for an empty pattern, and for a replacement with more '*' than its pattern.
  Rename(std::initializer_list<Pairs::value_type> pairs) : Rename(Pairs(pairs)) {}
  Rename(Pairs pairs);  // NOLINT: implicit, for {.rename = pairs}
  template <class F>
  requires std::is_invocable_r_v<std::string, F, const std::string&> Rename(F function)  // NOLINT: implicit
      : function_(std::make_shared<Function>(std::move(function))) {}

  /// The model's name of the file's tensor `name`; "": it is left out.
  std::string operator()(const std::string& name) const;
  /// The first pattern that fits none of `names`, which become what the pairs before it make of them; empty if each fits
  /// one.
  std::optional<std::string> unused(std::vector<std::string>& names) const;

 private:
  Pairs pairs_;
  std::shared_ptr<const Function> function_;  // null: pairs_
};

}  // namespace lockstep::nn
