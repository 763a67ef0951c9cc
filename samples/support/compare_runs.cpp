#include "support/compare_runs.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "support/stop.h"
#include "support/strategy.h"
#include "support/timeline.h"
#include "tools/diff/text.h"
#include "tools/report/chrome_trace.h"

namespace samples {
namespace {

std::string result_file(const Options& options) {
  return (std::filesystem::path(options.out) / "result.json").string();
}

// With LOCKSTEP_RECORD each strategy records its run in a subdirectory.
class Records {
 public:
  Records() {
    if (const char* const directory = std::getenv(kVariable)) directory_ = directory;
  }
  ~Records() {
    if (!directory_.empty()) ::setenv(kVariable, directory_.c_str(), 1);
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  // The runs that follow, in this process and in ranks, are those of the strategy.
  void begin(const std::string& name) const {
    if (!directory_.empty()) ::setenv(kVariable, of(name).c_str(), 1);
  }
  bool is_recording() const { return !directory_.empty(); }
  std::string of(const std::string& name) const { return (std::filesystem::path(directory_) / name).string(); }

 private:
  static constexpr const char* kVariable = "LOCKSTEP_RECORD";
  std::string directory_;  // empty: nothing is recorded
};

}  // namespace

std::vector<std::string> compared(const Options& options) {
  return options.compared.empty() ? std::vector<std::string>{"single", "accumulate", "dp", "ddp"} : options.compared;
}

Options in_mode(const Options& options, const std::string& mode) {
  Options result = options;
  result.strategy = mode;
  result.out = (std::filesystem::path(options.out) / mode).string();
  result.save = (std::filesystem::path(result.out) / "checkpoint.safetensors").string();
  result.quiet = true;
  result.trace.clear();
  result.report.clear();
  result.explain = false;
  if (!has_ranks(mode)) result.inject.clear();
  if (!has_mesh(mode)) result.mesh.clear();
  if (is_traced(options)) result.timeline = (std::filesystem::path(result.out) / "timeline.json").string();
  return result;
}

int train_all(const Options& options, Train train, std::vector<Result>& results) {
  const std::vector<std::string> names = compared(options);
  std::size_t number = 0;
  const Records records;
  for (const bool in_ranks : {true, false}) {
    if (!in_ranks) install_stop_handler();
    for (const std::string& name : names) {
      if (has_ranks(name) != in_ranks) continue;
      // A run prints nothing here, and may take minutes.
      if (!options.quiet) fmt::print(stderr, "{} of {}: {} ...\n", ++number, names.size(), name);
      const Options here = in_mode(options, name);
      std::filesystem::remove(result_file(here));
      records.begin(name);
      if (const int code = in_ranks ? start_ranks(here) : train(here); code != 0) return code;
    }
  }
  for (const std::string& name : names) results.push_back(read_result(result_file(in_mode(options, name))));
  if (!options.quiet) fmt::print(stderr, "\n");
  return 0;
}

void write_traces_of_all(const Options& options) {
  if (!is_traced(options)) return;
  std::vector<lockstep::Trace> traces;
  for (const std::string& name : compared(options)) {
    for (lockstep::Trace& trace : report::read_chrome_trace(in_mode(options, name).timeline))
      traces.push_back(std::move(trace));
  }
  write_traces(options, traces);
}

std::string first_difference(const std::string& a, const std::string& b, bool has_gradients) {
  const Records records;
  if (!records.is_recording())
    return "Run it again with LOCKSTEP_RECORD=DIRECTORY in the environment, to see where they first differ.\n";
  return diff::as_text(
      diff::compare(diff::read_run(records.of(a)), diff::read_run(records.of(b)), {.has_gradients = has_gradients}), a,
      b);
}

}  // namespace samples
