// The stages of a chain of modules. Not installed.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/parallel/model_parallel/styles_internal.h"

namespace lockstep::parallel {

// Stage s has the modules [begins[s], begins[s + 1]) of the chain, and is on rank s % ranks.
struct Stages {
  std::vector<ChainModule> chain;
  std::vector<std::size_t> begins;  // one more than stages
  int ranks = 1, rank = 0;

  int count() const { return static_cast<int>(begins.size()) - 1; }
  int chunks() const { return count() / ranks; }  // of a rank
  int rank_of(int stage) const { return stage % ranks; }
  int chunk_of(int stage) const { return stage / ranks; }
  bool is_last(int stage) const { return stage == count() - 1; }
  int stage_of(std::size_t link) const {
    int stage = 0;
    while (begins[static_cast<std::size_t>(stage) + 1] <= link) ++stage;
    return stage;
  }
};

}  // namespace lockstep::parallel
