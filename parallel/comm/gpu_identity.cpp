#include "lockstep/parallel/comm/gpu_identity_internal.h"

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kLongestIdentity = 256;  // of an encoded identity

std::string encode(const GpuIdentity& gpu) { return gpu.host + '\n' + gpu.uuid + '\n' + gpu.name; }

GpuIdentity decode(const std::string& text, int rank) {
  const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
  if (text.size() > kLongestIdentity || first == std::string::npos || second == std::string::npos)
    throw CommError(fmt::format("init_process_group: nccl: rank {} wrote no valid GPU identity to the store", rank));
  return {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

}  // namespace

std::vector<GpuIdentity> exchange_gpus(Store& store, int rank, int size, const GpuIdentity& own) {
  const auto key = [](int r) { return fmt::format("gpu/{}", r); };
  store.set(key(rank), encode(own));
  std::vector<GpuIdentity> all;
  for (int r = 0; r < size; ++r) all.push_back(decode(store.get(key(r)), r));
  // If two ranks share a GPU, all ranks fail next: rank 0, which often serves the store, must be the last to leave it.
  const auto has_read = [](int r) { return fmt::format("gpu/{}/has_read", r); };
  if (rank > 0) store.set(has_read(rank), "1");
  for (int r = 1; r < size && rank == 0; ++r) store.get(has_read(r));
  return all;
}

bool check_shared_gpu(const std::vector<GpuIdentity>& ranks, bool allow_shared) {
  for (std::size_t b = 1; b < ranks.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (!ranks[a].is_same_gpu(ranks[b])) continue;
      LOCKSTEP_CHECK(
          allow_shared,
          "init_process_group: nccl: ranks {} and {} are on one GPU, {} ({} of rank {})\n"
          "Start one rank for each GPU, with .device = \"cuda:<local rank>\", or use shm, which may share a GPU\n"
          ".backend_options = NcclOptions{{.allow_shared_gpu = true}} is for tests",
          a, b, lockstep::in_quotes(ranks[a].uuid), lockstep::in_quotes(ranks[b].name), b);
      return true;
    }
  }
  return false;
}

}  // namespace lockstep::parallel
