// The option --losses FOLDER of benchmarks over two ranks: a short run that the peers in PyTorch repeat from the same
// weights and data.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/ranks.h"

namespace bench {

struct ShortRun {
  ls::StateDict start;         // the initial weights, and the data
  std::vector<double> losses;  // of each step
};

// If the command line has the option: calls train(group) on two ranks, and rank 0 writes FOLDER/start.safetensors and
// FOLDER/ours.json, the losses. Returns whether it has.
inline bool write_losses(int argc, char** argv, const std::function<ShortRun(const Group&)>& train) {
  if (argc != 3 || argv[1] != std::string_view("--losses")) return false;
  const std::string folder = argv[2];
  run_group(2, [&](const Group& group, Shared&) {
    const ShortRun run = train(group);
    if (group->rank() != 0) return;
    ls::save(run.start, folder + "/start.safetensors");
    std::ofstream(folder + "/ours.json") << fmt::format("[{:.9g}]\n", fmt::join(run.losses, ", "));
  });
  return true;
}

}  // namespace bench
