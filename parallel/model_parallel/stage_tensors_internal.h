// The parameters and buffers of a model in stages: which rank has them. Not installed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/model_parallel/stages_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"

namespace lockstep::parallel {

class StageTensors {
 public:
  // Throws InvalidArgument if modules of different ranks share a buffer, or a rank has no parameters.
  StageTensors(const char* op, const nn::Module& module, const Stages& stages);

  // Takes away this rank's tensors of other ranks' stages; their memory is free if nothing else refers to it.
  void leave_to_others();
  // Calls body() while this rank has all tensors. Collective over `group`, the ranks of the stages. Throws InvalidArgument
  // if body() has changed a parameter.
  void with_all(ProcessGroup& group, FunctionRef<void()> body);

  // The first chunk of this rank that uses the parameter, which this rank has.
  int chunk_of(const nn::Parameter& parameter) { return entry_of(parameter).chunk; }
  std::vector<StageRunner::Place> places() const;

 private:
  struct Entry {
    nn::TensorHandle handle;
    std::string name;
    TensorOptions options;  // of the tensor
    Shape shape;
    bool requires_grad, is_parameter;
    int rank = -1;         // that of the first stage that uses it
    bool is_here = false;  // this rank has a stage that uses it,
    int chunk = 0;         // the first one in this chunk
  };
  void add(const std::string& name, const nn::TensorHandle& handle, bool is_parameter);
  void use(const char* op, const std::string& name, const nn::TensorHandle& handle, int rank, int chunk);
  Entry& entry_of(const nn::TensorHandle& handle) {
    return *std::ranges::find(entries_, handle.id(), [](const Entry& each) { return each.handle.id(); });
  }
  void gather(ProcessGroup& group) const;

  std::vector<Entry> entries_;  // parameters, then buffers, each in the order of the model
  int rank_;
};

}  // namespace lockstep::parallel
