// Options of the ranks of the tests of nccl: on two GPUs, or both on one.
#pragma once

#include <cstdlib>

#include "tests/cuda/host_accelerator.h"
#include "tests/parallel/comm/parts.h"

namespace par = ls::parallel;

inline par::InitOptions options_of_rank() {
  const int gpus = ls::device_count(ls::DeviceType::kCuda);
  REQUIRE(gpus > 0);
  REQUIRE(std::getenv("LOCAL_RANK") != nullptr);  // set by lockstep-run
  return {.backend = "nccl",
          .device = ls::Device(ls::DeviceType::kCuda, std::atoi(std::getenv("LOCAL_RANK")) % gpus),
          .backend_options = par::NcclOptions{.allow_shared_gpu = gpus < 2}};
}
