// Finds out which GPU each rank uses, and whether ranks share one. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct GpuIdentity {
  std::string host;  // boot_id()
  std::string uuid;  // of the GPU or MIG instance
  std::string name;  // the rank's name of the device, for example "cuda:1"
  bool is_same_gpu(const GpuIdentity& other) const { return host == other.host && uuid == other.uuid; }
};

// Exchanges identities over the store and returns those of all ranks. Throws CommTimeout if one is missing.
std::vector<GpuIdentity> exchange_gpus(Store& store, int rank, int size, const GpuIdentity& own);
// Returns true if two ranks use one GPU. Throws InvalidArgument, naming both ranks, unless `allow_shared`.
bool check_shared_gpu(const std::vector<GpuIdentity>& ranks, bool allow_shared);

}  // namespace lockstep::parallel
