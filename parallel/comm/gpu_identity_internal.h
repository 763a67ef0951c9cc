// Which GPU each rank uses, and what is wrong about that. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/rendezvous/store.h"

namespace lockstep::parallel {

struct GpuIdentity {
  std::string host;  // its boot number
  std::string uuid;  // of the GPU, or of a part of one (MIG)
  std::string name;  // "cuda:1", as the rank calls it
  bool is_same_gpu(const GpuIdentity& other) const { return host == other.host && uuid == other.uuid; }
};

// This machine's mark for `host`.
std::string machine_mark();
// Tells the other ranks by the store, and returns all. Throws CommTimeout where one does not tell.
std::vector<GpuIdentity> exchange_gpus(Store& store, int rank, int size, const GpuIdentity& own);
// Whether two ranks are on one GPU. Throws InvalidArgument, naming both, unless that is allowed.
bool check_shared_gpu(const std::vector<GpuIdentity>& ranks, bool allow_shared);

}  // namespace lockstep::parallel
