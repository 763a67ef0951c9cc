// Checks that all ranks have the same model. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

// Compares the lists of parameters and buffers: names, shapes, dtypes, the order of devices (not their names), and
// `options`, a text each, the last one of the version and the CPU. Throws CommError, on all ranks, naming `mode`, the
// first rank that differs from rank 0, and the first difference.
void check_same_model(const char* mode, const nn::Module& module, ProcessGroup& group,
                      const std::vector<std::string>& options);

// Compares the lists alone. Throws CommError, on all ranks: "<op>: ranks have different models: ...".
void check_same_tensors(const char* op, const nn::Module& module, ProcessGroup& group);

// All ranks get rank 0's parameters and buffers, whose lists must be the same. Deferred parameters have the same initial
// values on all ranks with the same seed; throws CommError, on all ranks, if seeds differ.
void share_values(const char* op, const nn::Module& module, ProcessGroup& group);

// The same over the ranks that have different slices of the model, for parameters and buffers that are whole on all of
// them and whose values parallelize has not shared: those of modules that were added after it, or that are outside of the
// module that it was called for. Nothing is sent if there are none.
void share_added_values(const char* mode, nn::Module& module);

// Compares a line of at most 256 bytes. Throws CommError, on all ranks: "<what>: rank 0 has <text>, rank 2 has ...".
void check_same_text(const std::string& what, const std::string& text, ProcessGroup& group);
// The same of several lines.
void check_same_texts(const std::string& what, const std::vector<std::string>& texts, ProcessGroup& group);

// Compares the values of all parameters and, `with_buffers`, of all buffers. Throws CommError, on all ranks, naming
// `mode` and the first that differs.
void check_same_values(const char* mode, const nn::Module& module, ProcessGroup& group, bool with_buffers);
// The same over the ranks that have different slices of the model: of parameters and buffers that are whole on all.
void check_same_whole_values(const char* mode, nn::Module& module);

// Compares, over the ranks that have different slices of the model, the gradients of parameters that are whole on all; of a
// sharded model those of the pieces. They differ if a parameter is used where each rank has a part of its gradient, or if
// the ranks have different seeds. Throws InvalidArgument, on all ranks.
void check_same_whole_gradients(const char* mode, nn::Module& module, const std::vector<ShardedParameter>& parameters);

// Compares the tensors of a batch. Throws InvalidArgument, on all ranks: "<op>: rank 2 of the axis has other tensors than
// rank 0, but all ranks along it <rule>".
void check_same_batch(const char* op, const std::vector<Tensor>& batch, ProcessGroup& group, const char* rule);
struct StepFlags {
  bool evaluates = false, wants_stop = false;
};
// The same over the ranks that have different slices or stages of the model, if it has any; also throws if some of them
// evaluate and others train. Returns whether any of them wants to stop, for which nothing more is sent.
bool check_same_step_of_parts(const char* mode, nn::Module& module, const std::vector<Tensor>& batch, StepFlags flags);

}  // namespace lockstep::parallel
