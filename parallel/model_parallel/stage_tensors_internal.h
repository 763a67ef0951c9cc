// The parameters and buffers of a model in stages: which rank has them. Not installed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/model_parallel/styles_internal.h"

namespace lockstep::parallel {

// The stages of a chain: stage s has the modules [begins[s], begins[s + 1]), and is on rank s % ranks.
struct Stages {
  std::vector<ChainModule> chain;
  std::vector<std::size_t> begins;  // one more than stages
  int ranks = 1, rank = 0;

  int count() const { return static_cast<int>(begins.size()) - 1; }
  int rank_of(int stage) const { return stage % ranks; }
  int chunk_of(int stage) const { return stage / ranks; }
  bool is_last(int stage) const { return stage == count() - 1; }
};

class StageTensors {
 public:
  // Throws InvalidArgument if modules of different ranks share a parameter or buffer.
  StageTensors(const char* op, const nn::Module& module, const Stages& stages);

  // Takes away this rank's tensors of other ranks' stages; their memory is free if nothing else refers to it.
  void leave_to_others();
  // Calls body() while this rank has all tensors. Collective over `group`, the ranks of the stages.
  void with_all(ProcessGroup& group, FunctionRef<void()> body);

  int chunk_of(const nn::Parameter& parameter) const;
  // Each parameter of the model, the slices of one as one: whether this rank has it.
  std::vector<bool> own_parameters() const;

 private:
  struct Entry {
    nn::TensorHandle handle;
    std::string name;
    TensorOptions options;  // of the tensor
    Shape shape;
    bool requires_grad, is_parameter;
    int rank, chunk;
  };
  void add(const char* op, const std::string& name, const nn::TensorHandle& handle, bool is_parameter, int stage,
           const Stages& stages);
  void order_as(const nn::Module& module);

  std::vector<Entry> entries_;  // parameters, then buffers, each in the order of the model
  int rank_;
};

}  // namespace lockstep::parallel
