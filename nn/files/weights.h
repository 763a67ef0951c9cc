/// \file
/// Weights of a trained model from files of any origin, read straight into the parameters.
///
///     nn::DeferredInit deferred;
///     Gpt2 model;                      // needs no memory for parameters
///     deferred.end();
///     nn::load_weights(model, "distilgpt2/", {.rename = {{"transformer", ""}, {"h.*.attn.bias", ""}},
///                                             .transpose = {"h.*.attn.c_*", "h.*.mlp.c_*"}});
///
/// For a model that several ranks share (sharded, in slices or in stages) see parallel/checkpoint/weights.h.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/files/rename.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Options of load_weights.
struct LoadWeightsOptions {
  bool strict = true;  ///< names that are missing or unexpected, and other shapes, are errors
  Rename rename = {};  ///< from the file's names to the model's
  /// Patterns of the model's names, or of modules with them, as "blocks.*.up": the file has their matrices transposed,
  /// as those of Conv1D in GPT-2 are. A square matrix is transposed only if a pattern says so: its shape does not show
  /// it. A pattern that describes no matrix of the model is an error.
  std::vector<std::string> transpose = {};
};

using LoadWeightsResult = LoadStateDictResult;  ///< what did not match

/// Reads the model's parameters and buffers from `path`: a safetensors file, an index (`*.safetensors.index.json`) of
/// several, or a folder with either, `model.safetensors` or `model.safetensors.index.json`. If the folder has both,
/// `model.safetensors` is read, as in transformers. A tensor of these files that the index lacks is unexpected. Tensors
/// are read one by one, into the model's own memory, converting dtypes. Deferred parameters get memory on the CPU, and
/// those that are missing their initial values. A tied tensor may be there under one of its names, or under several with
/// equal values. The buffer `num_batches_tracked` may be missing, and a tensor of one element may have the shape () or
/// (1).
///
/// Throws InvalidArgument, with all names that do not match and, where one is likely, the fix; for a pattern of
/// `.transpose` that describes no matrix; for different values of one tied tensor; IoError for a file that cannot be
/// read, violates the format, or has another checksum than its header says; both before anything changes. If reading
/// fails later, parameters may have values of the file.
LoadWeightsResult load_weights(Module& module, const std::string& path, const LoadWeightsOptions& options = {});

}  // namespace lockstep::nn
