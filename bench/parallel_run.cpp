// Runs the benchmarks of data parallelism and their peers in turn and prints both next to the goals.
//
//   bench_parallel_run --bin <our programs> --launcher <lockstep-run> --result <file.json>
//                      [--filter <part of a row's name>] [--repeats 3]
//                      [--mpi <mpi_all_reduce>] [--python <python with torch> --torch <torch_ddp.py>]
//                      [--load <load average before this>] [--skipped <text>] ...
//
// scripts/bench_parallel.sh finds all of these.
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/arguments.h"
#include "support/process.h"

namespace {

using bench::Arguments;

using bench::ProcessResult;
using bench::run_process;
using nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

const std::string kOurs = "ours";
const std::string kMpi = "OpenMPI";
const std::string kTorch = "PyTorch";

// A measured figure: the row's name as the program prints it, and its contender.
struct Source {
  std::string contender, row;
};

// The reference of a row.
struct Reference {
  Source source;
  std::string name;                          // in the table
  bool ours_over = false;                    // ratio: ours / reference (a price), else reference / ours (a gain)
  double at_most = kNone, at_least = kNone;  // bounds of the ratio
  double more_at_most = kNone;               // bound of ours - reference, in the row's unit
};

struct Goal {
  std::string name;
  std::string unit;
  double at_most = kNone;  // bound of our figure, in that unit
  std::optional<Reference> reference = std::nullopt;
};

Reference limit(const std::string& row, double at_most = kNone) {
  return {.source = {kOurs, "limit_" + row}, .name = "limit", .ours_over = true, .at_most = at_most};
}

// The same step in as many processes without a group; the ratio is the efficiency.
Reference plain(const std::string& rows, double at_least) {
  return {.source = {kOurs, "plain_mlp_" + rows}, .name = "plain", .at_least = at_least};
}

Reference torch_gloo(const std::string& size) {
  return {.source = {kTorch, "all_reduce_2_" + size}, .name = kTorch, .at_least = 1};
}
Reference bare_mpi(const std::string& size) {
  return {.source = {kMpi, "all_reduce_2_" + size}, .name = kMpi, .ours_over = true, .at_most = 1.1};
}
// The price of the canonical order.
Reference native(const std::string& backend, const std::string& size) {
  return {
      .source = {kOurs, backend + "_native_all_reduce_2_" + size}, .name = "native", .ours_over = true, .at_most = 1.5};
}

const std::vector<Goal> kGoals{
    {.name = "all_reduce_2_4b", .unit = "us", .at_most = 0.6, .reference = limit("all_reduce_2_4b")},
    {.name = "all_reduce_2_4kb", .unit = "us", .at_most = 0.8, .reference = limit("all_reduce_2_4kb")},
    {.name = "all_reduce_2_4mb", .unit = "us", .reference = limit("all_reduce_2_4mb", 1.3)},
    {.name = "all_reduce_2_100mb", .unit = "ms", .reference = limit("all_reduce_2_100mb", 1.3)},
    {.name = "all_gather_2_4mb", .unit = "us", .at_most = 35, .reference = limit("all_gather_2_4mb", 1.3)},
    {.name = "reduce_scatter_2_4mb", .unit = "us", .at_most = 35, .reference = limit("reduce_scatter_2_4mb", 1.3)},
    {.name = "new_all_gather_2_4mb", .unit = "us", .reference = limit("new_all_gather_2_4mb", 1.3)},
    {.name = "new_reduce_scatter_2_4mb", .unit = "us", .reference = limit("new_reduce_scatter_2_4mb", 1.3)},
    {.name = "all_reduce_8_4kb", .unit = "us", .at_most = 60},
    {.name = "all_reduce_8_4mb", .unit = "ms", .at_most = 1.3},
    {.name = "gloo_native_all_reduce_2_4b", .unit = "us", .reference = torch_gloo("4b")},
    {.name = "gloo_native_all_reduce_2_4mb", .unit = "ms", .reference = torch_gloo("4mb")},
    {.name = "gloo_native_all_reduce_2_100mb", .unit = "ms", .reference = torch_gloo("100mb")},
    {.name = "gloo_canonical_all_reduce_2_100mb", .unit = "ms", .reference = native("gloo", "100mb")},
    {.name = "mpi_native_all_reduce_2_4b",
     .unit = "us",
     .reference = Reference{.source = {kMpi, "all_reduce_2_4b"}, .name = kMpi, .ours_over = true, .more_at_most = 2}},
    {.name = "mpi_native_all_reduce_2_4mb", .unit = "ms", .reference = bare_mpi("4mb")},
    {.name = "mpi_native_all_reduce_2_100mb", .unit = "ms", .reference = bare_mpi("100mb")},
    {.name = "mpi_canonical_all_reduce_2_100mb", .unit = "ms", .reference = native("mpi", "100mb")},
    {.name = "survivor_shm_p50", .unit = "ms"},
    {.name = "survivor_shm_p99", .unit = "ms", .at_most = 100},
    {.name = "survivor_shm_max", .unit = "ms", .at_most = 1000},
    {.name = "survivor_gloo_p50", .unit = "ms"},
    {.name = "survivor_gloo_p99", .unit = "ms", .at_most = 100},
    {.name = "survivor_gloo_max", .unit = "ms", .at_most = 1000},
    {.name = "survivor_busy_p50", .unit = "ms"},
    {.name = "survivor_busy_p99", .unit = "ms", .at_most = 100},
    {.name = "survivor_busy_max", .unit = "ms", .at_most = 1000},
    {.name = "ddp_logreg_step",
     .unit = "us",
     .at_most = 4,
     .reference = Reference{.source = {kTorch, "ddp_logreg_step"}, .name = kTorch, .at_least = 100}},
    {.name = "ddp_mlp_32", .unit = "us", .reference = plain("32", 0.85)},
    {.name = "ddp_mlp_128", .unit = "us", .reference = plain("128", 0.95)},
    {.name = "ddp_mlp_512", .unit = "us", .reference = plain("512", 0.98)},
    {.name = "dp_mlp_128",
     .unit = "us",
     .reference = Reference{.source = {kOurs, "ddp_mlp_128"}, .name = "ddp", .ours_over = true, .at_most = 1.25}},
    {.name = "launch_to_first_step", .unit = "ms", .at_most = 100},
    {.name = "ddp_memory", .unit = "KB", .at_most = 64},
};

// All figures of all rounds, by contender and row: in seconds, or in the row's unit.
class Figures {
 public:
  void add(const Source& source, double value) { values_[source.contender][source.row].push_back(value); }
  std::optional<double> median(const Source& source) const {
    const auto rows = values_.find(source.contender);
    if (rows == values_.end() || !rows->second.contains(source.row)) return std::nullopt;
    std::vector<double> sorted = rows->second.at(source.row);
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  json to_json() const { return values_; }

 private:
  std::map<std::string, std::map<std::string, std::vector<double>>> values_;
};

double monotonic_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The JSON objects among the lines of a program's output.
std::vector<json> json_lines(const std::string& output) {
  std::vector<json> rows;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object() && row.contains("name")) rows.push_back(std::move(row));
  }
  return rows;
}

// Converts a row's figure to the unit of the table.
double shown(double value, const std::string& unit) {
  if (unit == "us") return value * 1e6;
  if (unit == "ms") return value * 1e3;
  return value;
}

std::string number(double value) {
  std::ostringstream stream;
  stream.precision(value >= 1000 ? 6 : 4);
  stream << value;
  return stream.str();
}

class Comparison {
 public:
  explicit Comparison(const Arguments& arguments)
      : arguments_(arguments), filter_(arguments.get("filter")), skipped_(arguments.all("skipped")) {}

  // Our programs and the peers take turns, so that disturbances of the machine affect all of them.
  void measure() {
    const int repeats = std::stoi(arguments_.get("repeats", "3"));
    const std::string bin = arguments_.get("bin"), mpi = arguments_.get("mpi"), torch = arguments_.get("torch");
    const std::vector<std::string> python{arguments_.get("python"), torch};
    for (int round = 0; round < repeats; ++round) {
      std::fprintf(stderr, "round %d of %d\n", round + 1, repeats);
      if (any_wanted("all_reduce") || any_wanted("all_gather") || any_wanted("reduce_scatter") || any_wanted("new_"))
        run(kOurs, {bin + "/bench_all_reduce"});
      if (any_wanted("gloo_")) run(kOurs, {bin + "/bench_all_reduce", "--backend", "gloo"});
      if (!mpi.empty() && any_wanted("mpi_")) run_mpi(kOurs, {bin + "/bench_all_reduce", "--backend", "mpi"}, 2);
      if (any_wanted("survivor_")) run(kOurs, {bin + "/bench_survivors"});
      if (any_wanted("dp_") || any_wanted("ddp_")) run(kOurs, {bin + "/bench_distributed"});
      if (wanted("launch_to_first_step")) {
        launch(kOurs, {arguments_.get("launcher"), "--nproc-per-node", "2", "--no-prefix", bin + "/bench_distributed",
                       "--first-step"});
      }
      if (!mpi.empty() && (any_wanted("all_reduce_2") || any_wanted("mpi_"))) run_mpi(kMpi, {mpi}, 2);
      if (!mpi.empty() && any_wanted("all_reduce_8")) run_mpi(kMpi, {mpi}, 8);
      if (torch.empty()) continue;
      if (any_wanted("all_reduce_2") || any_wanted("ddp_") || any_wanted("gloo_")) run(kTorch, python);
      if (wanted("launch_to_first_step")) launch(kTorch, {python[0], torch, "--first-step"});
    }
  }

  // Prints the table and returns it as JSON. A row without our figure is omitted.
  json report() {
    std::printf("\n%-28s %10s %10s  %-20s %-36s %s\n", "work", "ours", "reference", "ratio", "goal", "met");
    json rows = json::array();
    for (const Goal& goal : kGoals) {
      if (!wanted(goal.name)) continue;
      if (const auto row = report(goal)) rows.push_back(*row);
    }
    std::printf("\n");
    for (const Goal& goal : kGoals) {
      if (!wanted(goal.name)) continue;
      for (const std::string& peer : {kMpi, kTorch}) {
        if (goal.reference && goal.reference->source.contender == peer) continue;  // printed above
        if (const auto row = reference_row({goal.name, goal.unit}, peer)) rows.push_back(*row);
      }
    }
    for (const std::string rows_of_batch : {"32", "128", "512"}) {
      if (const auto row = efficiency_of_torch(rows_of_batch)) rows.push_back(*row);
    }
    std::printf("\n");
    for (const std::string& text : skipped_) std::printf("skipped: %s\n", text.c_str());
    return {{"machine", machine()}, {"rows", rows}, {"skipped", skipped_}, {"figures", figures_.to_json()}};
  }

 private:
  bool wanted(const std::string& row) const { return row.find(filter_) != std::string::npos; }
  // True if the filter selects a row whose name starts with `start`.
  bool any_wanted(const std::string& start) const {
    return std::any_of(kGoals.begin(), kGoals.end(),
                       [&](const Goal& goal) { return goal.name.starts_with(start) && wanted(goal.name); });
  }
  void skip(const std::string& text) {
    if (std::find(skipped_.begin(), skipped_.end(), text) == skipped_.end()) skipped_.push_back(text);
  }

  std::optional<std::vector<json>> rows_of(const std::string& contender, const std::vector<std::string>& command) {
    // A peer's row has no backend in its name.
    const bool is_of_backend = filter_.starts_with("gloo") || filter_.starts_with("mpi");
    const std::size_t size = filter_.find("all_reduce");
    const std::string peers_filter = !is_of_backend              ? filter_
                                     : size == std::string::npos ? "all_reduce_2"
                                                                 : filter_.substr(size);
    const ProcessResult result =
        run_process(command, {.environment = {{"BENCH_FILTER", contender == kOurs ? filter_ : peers_filter}}});
    if (result.exit_code == 0) return json_lines(result.output);
    skip(contender + ": " + command[0] + " ended with " + std::to_string(result.exit_code));
    return std::nullopt;
  }

  void run(const std::string& contender, const std::vector<std::string>& command) {
    for (const json& row : rows_of(contender, command).value_or(std::vector<json>{})) {
      const std::string name = row["name"].get<std::string>();
      for (const char* const key : {"seconds", "kilobytes"}) {
        if (row.contains(key)) figures_.add({contender, name}, row[key].get<double>());
      }
    }
  }

  void run_mpi(const std::string& contender, const std::vector<std::string>& program, int ranks) {
    std::vector<std::string> command{"mpirun", "-np", std::to_string(ranks), "--allow-run-as-root"};
    if (ranks > sysconf(_SC_NPROCESSORS_ONLN)) command.push_back("--oversubscribe");
    command.insert(command.end(), program.begin(), program.end());
    run(contender, command);
  }

  // Measures from here to the end of the last rank's first step.
  void launch(const std::string& contender, const std::vector<std::string>& command) {
    const double start = monotonic_seconds();
    double end = 0;
    for (const json& row : rows_of(contender, command).value_or(std::vector<json>{})) {
      if (row.contains("monotonic")) end = std::max(end, row["monotonic"].get<double>());
    }
    if (end > 0) figures_.add({contender, "launch_to_first_step"}, end - start);
  }

  std::optional<json> report(const Goal& goal) const {
    const auto ours = figures_.median({kOurs, goal.name});
    if (!ours) return std::nullopt;
    const double figure = shown(*ours, goal.unit);
    json row{{"name", goal.name}, {"unit", goal.unit}, {"ours", figure}};

    std::string goals;
    bool met = true, known = true;
    const auto demand = [&](const std::string& what, double value, double at_most, double at_least) {
      const bool upper = !std::isnan(at_most);
      if (!upper && std::isnan(at_least)) return;
      goals += (goals.empty() ? "" : ", ") + what + (upper ? " <= " : " >= ") + number(upper ? at_most : at_least);
      if (std::isnan(value))
        known = false;
      else
        met = met && (upper ? value <= at_most : value >= at_least);
    };
    demand(kOurs, figure, goal.at_most, kNone);

    std::string theirs = "-", ratio = "-";
    if (goal.reference) {
      const Reference& reference = *goal.reference;
      const auto other = figures_.median(reference.source);
      const std::string quotient = reference.ours_over ? "ours/" + reference.name : reference.name + "/ours";
      const double value = !other ? kNone : reference.ours_over ? *ours / *other : *other / *ours;
      demand(quotient, value, reference.at_most, reference.at_least);
      demand(kOurs + " - " + reference.name, other ? figure - shown(*other, goal.unit) : kNone, reference.more_at_most,
             kNone);
      if (other) {
        theirs = number(shown(*other, goal.unit));
        ratio = number(std::round(value * 1000) / 1000) + " " + quotient;
        row.update({{"reference", reference.name},
                    {"reference_figure", shown(*other, goal.unit)},
                    {"ratio", value},
                    {"ratio_of", quotient}});
      }
    }
    const std::string verdict = !met ? "NO" : known ? "yes" : "-";  // without the peer the result is unknown
    row.update({{"goal", goals}, {"met", verdict}});
    print(goal.name, goal.unit, number(figure), theirs, ratio, goals, verdict);
    return row;
  }

  // A row without a goal: our figure and a peer's, if both exist.
  std::optional<json> reference_row(const Goal& goal, const std::string& peer) const {
    const auto ours = figures_.median({kOurs, goal.name}), other = figures_.median({peer, goal.name});
    if (!ours || !other) return std::nullopt;
    return line(goal.name, goal.unit, shown(*ours, goal.unit), peer, shown(*other, goal.unit), *other / *ours);
  }

  std::optional<json> efficiency_of_torch(const std::string& rows) const {
    const std::string name = "mlp_" + rows;
    if (!wanted("ddp_" + name)) return std::nullopt;
    const auto efficiency = [&](const std::string& contender) -> std::optional<double> {
      const auto plain = figures_.median({contender, "plain_" + name}),
                 ddp = figures_.median({contender, "ddp_" + name});
      if (!plain || !ddp) return std::nullopt;
      return *plain / *ddp;
    };
    const auto ours = efficiency(kOurs), other = efficiency(kTorch);
    if (!ours || !other) return std::nullopt;
    return line("efficiency_ddp_" + name, "", *ours, kTorch, *other, kNone);
  }

  static json line(const std::string& name, const std::string& unit, double ours, const std::string& peer,
                   double theirs, double ratio) {
    json row{{"name", name}, {"unit", unit}, {"ours", ours}, {"reference", peer}, {"reference_figure", theirs}};
    if (!std::isnan(ratio)) row.update({{"ratio", ratio}, {"ratio_of", peer + "/ours"}});
    const std::string text = std::isnan(ratio) ? peer : number(std::round(ratio * 100) / 100) + " " + peer + "/ours";
    print(name, unit, number(ours), number(theirs), text, "", "");
    return row;
  }

  static void print(const std::string& name, const std::string& unit, const std::string& ours,
                    const std::string& theirs, const std::string& ratio, const std::string& goal,
                    const std::string& met) {
    const std::string work = unit.empty() ? name : name + " [" + unit + "]";
    std::printf("%-28s %10s %10s  %-20s %-36s %s\n", work.c_str(), ours.c_str(), theirs.c_str(), ratio.c_str(),
                goal.c_str(), met.c_str());
  }

  static json machine() {
    json result{{"cores", sysconf(_SC_NPROCESSORS_ONLN)}};
    std::ifstream cpu("/proc/cpuinfo");
    for (std::string line; std::getline(cpu, line);) {
      if (line.starts_with("model name")) result["cpu"] = line.substr(line.find(':') + 2);
    }
    utsname system{};
    if (uname(&system) == 0) result["system"] = std::string(system.sysname) + " " + system.release;
    return result;
  }

  const Arguments& arguments_;
  std::string filter_;
  std::vector<std::string> skipped_;
  Figures figures_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments(argc, argv);
    Comparison comparison(arguments);
    comparison.measure();
    json result = comparison.report();
    if (const std::string load = arguments.get("load"); !load.empty()) result["machine"]["load"] = std::stod(load);
    const std::string file = arguments.get("result");
    std::ofstream stream(file);
    stream << result.dump(2) << '\n';
    if (!stream) throw std::runtime_error("cannot write " + file);
    std::printf("the same as JSON: %s\n", file.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_parallel_run: %s\n", error.what());
    return 1;
  }
}
