/// \file
/// The rendezvous of a job's ranks: takes `init_method` and the environment, and returns rank, size and a store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

class FormationWatch;
class Liveness;

/// What a backend needs of its group's rendezvous.
struct BackendNeeds {
  bool one_host = false;         ///< the ranks must be on one host
  bool network_address = false;  ///< the ranks connect to each other at Rendezvous::address
};

/// The part of InitOptions (process_group.h) that controls the rendezvous.
struct RendezvousOptions {
  std::string backend = "shm";                                   ///< must be the same on all ranks
  std::string init_method = "env://";                            ///< ignored if `store` is given
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< for all ranks to arrive
  int world_size = -1;                                           ///< -1: from the environment
  int rank = -1;                                                 ///< -1: from the environment
  std::shared_ptr<Store> store = nullptr;                        ///< if given, rank and world_size must be given, too
  std::string group_name = {};                                   ///< distinguishes the groups of one store
  bool authenticate = true;  ///< whether a store of several hosts requires the job's token
  BackendNeeds (*needs)(const std::string& backend) = nullptr;  ///< the needs of a backend; null: it has none
};

/// The result of a rendezvous: rank, size, and the store of the group.
struct Rendezvous {
  int rank = 0;                                     ///< this rank's number
  int size = 1;                                     ///< number of ranks
  std::shared_ptr<Store> store = nullptr;           ///< for this group alone
  std::string address = {};                         ///< of this host for the other ranks; over a store that is given,
                                                    ///< empty unless the backend needs it
  std::vector<int> members = {};                    ///< after a split: the ranks' numbers in the original group
  std::shared_ptr<FormationWatch> watch = nullptr;  ///< until the group is complete; null without a store
  std::shared_ptr<Liveness> liveness = nullptr;     ///< after a split: shared with the original group

  /// The number of rank r in the original group.
  int global_rank(int r) const { return members.empty() ? r : members[static_cast<std::size_t>(r)]; }
};

/// Resolves `options` (env:// reads the variables that torchrun, mpirun and srun set; alternatively rank, world_size
/// and store are given) and runs the rendezvous. Throws CommError naming ranks that were started twice, ranks that
/// never arrive, or a stale run.
Rendezvous rendezvous(const RendezvousOptions& options);

}  // namespace lockstep::parallel
