/// \file
/// How the ranks of a job find each other: from `init_method` and the environment to rank, size and a store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

class FormationWatch;

/// How to meet the other ranks: the part of InitOptions (process_group.h) that says so.
struct RendezvousOptions {
  std::string backend = "shm";                                   ///< all ranks have to agree on it
  std::string init_method = "env://";                            ///< ignored where `store` is given
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< until all have arrived
  int world_size = -1;                                           ///< -1: from the environment
  int rank = -1;                                                 ///< -1: from the environment
  std::shared_ptr<Store> store = nullptr;                        ///< with it, rank and world_size must be given
  std::string group_name = {};                                   ///< keeps the groups of one store apart
  bool authenticate = true;                                      ///< stores of several hosts: with the job's token
};

/// A rank's place among the others, and the store in which they met.
struct Rendezvous {
  int rank = 0;                            ///< this rank's number
  int size = 1;                            ///< number of ranks
  std::shared_ptr<Store> store = nullptr;  ///< alone for this group
  std::string address = "127.0.0.1";       ///< of this host, on the network that leads to the others
  std::vector<int> members = {};           ///< after a split: the ranks' numbers in the group that was made first
  std::shared_ptr<FormationWatch> watch = nullptr;  ///< until the group is made; null without a store
};

/// Resolves `options` (env:// reads the variables that torchrun, mpirun and srun set; or rank, world_size and store given
/// directly) and meets the other ranks' store. Duplicate ranks, ranks that never arrive and stale runs are CommErrors that
/// name them.
Rendezvous rendezvous(const RendezvousOptions& options);

}  // namespace lockstep::parallel
