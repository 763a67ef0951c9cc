// Tests of nccl that need no GPU: which ranks may share a GPU, and the errors for missing parts.
#include "lockstep/base/file_internal.h"
#include "lockstep/parallel/comm/gpu_identity_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "tests/support/groups.h"

namespace {

namespace par = ls::parallel;

bool is_built() {
  try {
    par::backend_module("nccl");
    return true;
  } catch (const ls::NotBuilt&) {
    return false;
  }
}

std::string error_of_group(const par::InitOptions& options) {
  return error_of<ls::Error>([&] {
    with_threads(
        "nccl", 2, [](const Group&) {}, options);
  });
}

}  // namespace

TEST_CASE("two ranks on one GPU are an error that names both, unless it is allowed") {
  const std::vector<par::GpuIdentity> apart = {
      {"host a", "GPU-1", "cuda:0"}, {"host a", "GPU-2", "cuda:1"}, {"host b", "GPU-1", "cuda:0"}};
  CHECK(!par::check_shared_gpu(apart, false));
  CHECK(!par::check_shared_gpu(apart, true));
  std::vector<par::GpuIdentity> together = apart;
  together.push_back({"host a", "GPU-2", "cuda:1"});
  CHECK(par::check_shared_gpu(together, true));
  const std::string error = error_of<ls::InvalidArgument>([&] { par::check_shared_gpu(together, false); });
  CHECK(contains(error, "ranks 1 and 3 are on one GPU"));
  CHECK(contains(error, "GPU-2"));
  CHECK(contains(error, "allow_shared_gpu"));
}

TEST_CASE("ranks exchange their GPUs through the store, and malformed entries are refused") {
  par::InProcessStore store;
  store.set("gpu/0", "host\nGPU-1\ncuda:3");
  const auto all = par::exchange_gpus(store, 1, 2, {ls::boot_id(), "GPU-2", "cuda:0"});
  REQUIRE(all.size() == 2);
  CHECK(all[0].host == "host");
  CHECK(all[0].uuid == "GPU-1");
  CHECK(all[0].name == "cuda:3");
  CHECK(all[1].host == ls::boot_id());
  CHECK(!all[0].is_same_gpu(all[1]));
  for (const std::string& wrong : {std::string(), std::string("GPU-1"), "a\nb\n" + std::string(300, 'c')}) {
    store.set("gpu/0", wrong);
    CHECK(contains(error_of<ls::CommError>([&] {
                     par::exchange_gpus(store, 1, 2, {"host", "GPU-2", "cuda:0"});
                   }),
                   "rank 0"));
  }
}

TEST_CASE("without NCCL or without a GPU the error says what is missing") {
  if (ls::device_count(ls::DeviceType::kCuda) > 0) return;
  const std::string error = error_of_group({});
  if (is_built()) {
    CHECK(contains(error, "cuda:0: no CUDA device"));
    CHECK(contains(error_of_group({.device = "cpu"}), "nccl works on GPUs"));
    CHECK(contains(error_of_group({.reduction = par::Reduction::kCanonical}), "Reduction::kNative"));
  } else {
    CHECK(contains(error, "liblockstep_nccl"));
    CHECK(contains(error, "LOCKSTEP_WITH_NCCL=ON"));
    CHECK(contains(error, "nvidia-nccl"));
  }
}
