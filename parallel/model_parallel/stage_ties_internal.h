// Parameters that several modules of a chain share. Each module has its own gradient sum, and these are added from the
// last module to the first: so the bits do not depend on which of them are on one rank. Not installed.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/model_parallel/stages_internal.h"
#include "lockstep/parallel/step/gradient_sets_internal.h"

namespace lockstep::parallel {

class StageTies {
 public:
  explicit StageTies(const Stages& stages);

  bool has(const nn::Parameter& parameter) const;  // whether several modules share it
  // A step with gradients begins.
  void begin_step();
  // The parameters that chain module `link` uses in the forward of a micro-batch, on top of `view` (null: none). Null: no
  // others than the module's own. Kept until the next step.
  const nn::ReplicaView* enter(std::size_t link, const nn::ReplicaView* view);
  // Around the backward of a micro-batch in a chunk of this rank, as GradientSets.
  void begin(int micro_batch, int micro_batches, int chunk) { sets_.begin(micro_batch, micro_batches, chunk); }
  void end(int micro_batch, int micro_batches, int chunk) { sets_.end(micro_batch, micro_batches, chunk); }
  // Puts the sums over all modules into `sets`. Collective over the ranks of the stages (null: this one alone). If the
  // gradients will be reduced over `data`, a module's sum is that over its ranks: so the bits do not depend on the number
  // of pipelines. Then rank 0 of `data` gets the result, and the others -0, which changes no sum.
  void add_up_sums(GradientSets& sets, ProcessGroup* stages, ProcessGroup* data);

 private:
  struct User {
    std::size_t link;  // index in the chain
    int rank, chunk;
    std::size_t alias = kNone;  // in aliases_; kNone: the parameter itself, or on another rank
    Tensor sum = {};            // of this rank's modules, in add_up_sums; undefined: none
  };
  struct Tie {
    nn::Parameter parameter;
    std::string name;
    Shape shape;
    std::vector<User> users;  // in the order of the chain
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  bool is_trained_here(const Tie& tie) const;
  void reduce_sums(ProcessGroup& data);
  Tensor add_up(const Tie& tie, ProcessGroup* stages);

  int rank_;
  std::vector<Tie> ties_;
  std::vector<nn::Parameter> aliases_;                   // leaves that share the elements of a parameter
  GradientSets sets_;                                    // of the aliases
  std::vector<std::unique_ptr<nn::ReplicaView>> views_;  // of this step
};

}  // namespace lockstep::parallel
