// result.json: the result of a run, in machine-readable form. `compare` prints its table from these files.
#pragma once

#include <lockstep/lockstep.h>

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace samples {

// The mean loss of a model over a data set, and the fraction of correct predictions.
struct Score {
  double loss = 0;
  double accuracy = 0;
};

// Bytes by lockstep::parallel::Phase, over all links and ranks.
using PhaseBytes = std::array<std::int64_t, lockstep::parallel::kPhaseCount>;

// Bytes by the traffic counters.
struct Moved {
  PhaseBytes at_start = {};  // before the first step: DistributedDataParallel sends rank 0's parameters
  PhaseBytes in_steps = {};
  std::int64_t steps = 0;
  std::map<std::string, std::int64_t> by_axis = {};  // of a mesh, in steps: "pp", "dp", "cp and dp", ...

  // Mean bytes per step: the last step of an epoch may be smaller.
  double per_step(lockstep::parallel::Phase phase) const;
};

// Bytes of one rank, or of a process without ranks; the optimizer's are those of Adam, with two buffers per parameter.
struct Memory {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  std::int64_t units = 0;  // buffers of ShardedDataParallel

  std::int64_t total() const { return parameters + gradients + optimizer + units; }
};

struct Result {
  std::string mode = {};  // the strategy
  double steps_per_second = 0;
  Score train = {}, test = {};
  Moved moved = {};
  Memory memory = {};                                      // of the rank with most
  double idle = std::numeric_limits<double>::quiet_NaN();  // Step::idle_share
  std::string hash = {};  // nn::parameter_hash of the final model, 16 hexadecimal digits
};

// Throws lockstep::IoError.
void write_result(const std::string& path, const Result& result);
Result read_result(const std::string& path);

}  // namespace samples
