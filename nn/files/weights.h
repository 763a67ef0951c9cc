/// \file
/// Weights of a trained model from files of any origin, read straight into the parameters.
///
///     nn::DeferredInit deferred;
///     Gpt2 model;                      // needs no memory for parameters
///     deferred.end();
///     nn::load_weights(model, "gpt2/", {.rename = {{"transformer", ""}, {"h.*.attn.bias", ""}},
///                                       .transpose = {"h.*.attn.c_*", "h.*.mlp.c_*"}});
///
/// For a model that several ranks share (sharded, in slices or in stages) see parallel/checkpoint/weights.h.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/module.h"

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

 private:
  Pairs pairs_;
  std::shared_ptr<const Function> function_;  // null: pairs_
};

/// Options of load_weights.
struct LoadWeightsOptions {
  bool strict = true;  ///< names that are missing or unexpected, and other shapes, are errors
  Rename rename = {};  ///< from the file's names to the model's
  /// Patterns of the model's names, or of modules with them, as "blocks.*.up": the file has their matrices transposed,
  /// as those of Conv1D in GPT-2 are.
  std::vector<std::string> transpose = {};
};

/// What did not match in a load. With `strict` all are empty.
struct LoadWeightsResult {
  std::vector<std::string> missing;      ///< names in the model, but not in the file; these tensors keep their values
  std::vector<std::string> unexpected;   ///< the file's names that the model does not have
  std::vector<std::string> other_shape;  ///< names whose shapes differ; these tensors keep their values
};

/// Reads the model's parameters and buffers from `path`: a safetensors file, an index (`*.safetensors.index.json`) of
/// several, or a folder with either, `model.safetensors.index.json` or `model.safetensors`. Tensors are read one by one,
/// into the model's own memory, converting dtypes. Deferred parameters get memory on the CPU, and those that are missing
/// their initial values. A tied tensor may be there under one of its names, the buffer `num_batches_tracked` may be
/// missing, and a tensor of one element may have the shape () or (1).
///
/// Throws InvalidArgument, with all names that do not match and, where one is likely, the fix; IoError for a file that
/// cannot be read, violates the format, or has another checksum than its header says; both before anything changes. If
/// reading fails later, parameters may have values of the file.
LoadWeightsResult load_weights(Module& module, const std::string& path, const LoadWeightsOptions& options = {});

}  // namespace lockstep::nn
