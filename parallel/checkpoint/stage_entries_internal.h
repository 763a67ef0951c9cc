// Entries of a checkpoint of a model in stages: each rank has those of its own stages. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/files/safetensors_internal.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

inline constexpr std::string_view kModelEntry = "model.", kStateEntry = "optimizer.state.",
                                  kParamGroup = "optimizer.param_group.";  // of a parameter: its group, and its number

// The entries of some ranks, by names of the whole model.
struct StageEntries {
  struct Stepped {
    std::int64_t place;  // among the parameters of the whole model
    std::size_t group;   // of the optimizer
  };
  std::set<std::string> model;             // the names in its state_dict
  std::map<std::string, Stepped> stepped;  // the parameters in an optimizer

  // The numbers that the parameters have in the optimizer of one process: by group, then as in the model.
  std::map<std::string, std::int64_t> numbers() const;
  optim::GroupsOfParameters groups_without(const StageEntries& own) const;
  // Whether `entry` is a tensor of the model that this has and `own` lacks, or the optimizer's state of one.
  bool has_without(const StageEntries& own, std::string_view entry) const;
};

// The entries of all ranks together.
StageEntries of_all_ranks(const StageEntries& own, ProcessGroup& group);

// The parameter or buffer to which the file's entry belongs, so that ranks of other stages do not have it; "": to none.
std::string tensor_of(std::string_view entry);
// Adds pieces without elements for the entries that only other ranks have.
void add_pieces_of_others(std::vector<nn::safetensors::Piece>& pieces, ProcessGroup& group);

}  // namespace lockstep::parallel
