// Shared by the LibTorch peer programs.
#pragma once

#include <torch/torch.h>

#include "support/timing.h"

namespace peer {

using bench::measure;

inline void set_up() {
  bench::start_a_thread_once();
  at::set_num_threads(bench::threads());
  torch::manual_seed(0);
}

}  // namespace peer
