#include "support/ranks.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/parallel/launch/launch.h"
#include "support/step.h"

namespace samples {
namespace {

namespace par = lockstep::parallel;

std::string_view variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// Whether all ranks stopped on request; rank 0 has then printed a message.
bool stopped_on_request(const par::LaunchResult& result) {
  return std::all_of(result.ranks.begin(), result.ranks.end(), [](const par::RankExit& rank) {
    return rank.signal == 0 && (rank.code == 128 + SIGINT || rank.code == 128 + SIGTERM);
  });
}

// A rank that received the stop request with its peers' gradients, before the signal itself, assumes SIGTERM.
int exit_code_of(const par::LaunchResult& result) {
  const auto has_sigint = [](const par::RankExit& rank) { return rank.code == 128 + SIGINT; };
  const bool is_sigint = stopped_on_request(result) && std::ranges::any_of(result.ranks, has_sigint);
  return is_sigint ? 128 + SIGINT : result.exit_code;
}

// Describes a failure: only the error itself if several ranks have the same one, for example a missing file.
std::string describe(const par::LaunchResult& result) {
  if (result.first_failure < 0) return result.summary();  // a second stop request has killed the ranks
  const std::string& error = result.ranks[static_cast<std::size_t>(result.first_failure)].error;
  const auto has_it = [&](const par::RankExit& rank) { return rank.error == error; };
  const bool is_shared = std::count_if(result.ranks.begin(), result.ranks.end(), has_it) > 1;
  return !error.empty() && is_shared ? error + "\n" : result.summary();
}

}  // namespace

bool is_rank() {
  // The shell of a SLURM allocation is task 0 of 1, not a rank.
  return !variable("RANK").empty() || !variable("OMPI_COMM_WORLD_RANK").empty() ||
         (!variable("SLURM_PROCID").empty() && variable("SLURM_STEP_NUM_TASKS") > "1");
}

int start_ranks(const Options& options) {
  check_split(options, static_cast<int>(options.nproc));
  const bool by_mpi = options.backend == "mpi";
  std::vector<std::string> command;
  if (by_mpi) command = {"mpirun", "-np", std::to_string(options.nproc), "--oversubscribe"};
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  // The last occurrence of an option takes effect.
  command.insert(command.end(), {"--strategy", options.strategy, "--out", options.out, "--save", options.save});
  if (!options.timeline.empty()) command.insert(command.end(), {"--timeline", options.timeline});
  if (options.quiet) command.emplace_back("--quiet");
  std::fflush(stdout);
  const par::StopSignals signals;
  const par::LaunchResult result = par::launch({.nproc = by_mpi ? 1 : static_cast<int>(options.nproc),
                                                .command = command,
                                                .environment = {fmt::format("{}={}", kTypedCommand, options.command)},
                                                .stop_fd = signals.fd()});
  if (result.exit_code != 0 && !stopped_on_request(result)) {
    if (isatty(STDOUT_FILENO)) fmt::print("\x1b[?25h");  // rank 0 may have died while it hid the cursor
    fmt::print(stderr, "{}: {}", options.program, describe(result));
  }
  return exit_code_of(result);
}

void report_error(const std::string& program, const std::string& message) {
  par::write_error_file(message);
  if (variable(kTypedCommand).empty()) fmt::print(stderr, "{}: {}\n", program, message);  // else start_ranks prints it
}

}  // namespace samples
