// Runs our benchmark programs and their peers in turn, each pinned to the same core, and prints both next to the
// goals.
//
//   bench_run --bin <our programs> --result <file.json> [--filter <part of a row's name>] [--repeats 3]
//             [--threads <1 or 2: only rows with this number>]
//             [--peer <name>=<folder of LibTorch programs>[=<ATEN_CPU_CAPABILITY>]] ...
//             [--include <our headers> --contract <01_single.cpp>
//              [--peer-source <.cpp> --peer-source-name <name> --peer-flags <flags>]]
//             [--torch <PyTorch's name>=<python>] [--sample <logistic_regression>]
//             [--row <name>=<value>] ... [--skipped <text>] ...
//
// scripts/bench.sh finds all of these.
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/arguments.h"
#include "support/goals.h"
#include "support/process.h"

namespace {

using bench::Arguments;
using bench::Goal;
using bench::kGoals;
using bench::kNone;
using bench::kReferences;
using bench::ProcessOptions;
using bench::ProcessResult;
using bench::Reference;
using bench::run_process;
using nlohmann::json;

// A program that prints rows, and its output.
struct Contender {
  std::string name;
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;
};

// Figures by row and contender; each is the median of the collected samples.
class Figures {
 public:
  void add(const std::string& row, const std::string& contender, double value) {
    values_[row][contender].push_back(value);
  }
  std::optional<double> median(const std::string& row, const std::string& contender) const {
    const auto found = values_.find(row);
    if (found == values_.end() || !found->second.contains(contender)) return std::nullopt;
    std::vector<double> sorted = found->second.at(contender);
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  std::map<std::string, double> medians(const std::string& row) const {
    std::map<std::string, double> result;
    if (const auto found = values_.find(row); found != values_.end()) {
      for (const auto& [contender, _] : found->second) result[contender] = *median(row, contender);
    }
    return result;
  }

 private:
  std::map<std::string, std::map<std::string, std::vector<double>>> values_;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

class Comparison {
 public:
  explicit Comparison(const Arguments& arguments)
      : arguments_(arguments), filter_(arguments.get("filter")), skipped_(arguments.all("skipped")) {}

  // Contenders take turns, so that disturbances of the machine affect all of them; every other round runs backwards.
  void measure_times() {
    const int repeats = std::stoi(arguments_.get("repeats", "3"));
    const int only_threads = std::stoi(arguments_.get("threads", "0"));
    for (int round = 0; round < repeats; ++round) {
      for (const std::string program : {"small", "elementwise", "mlp", "attention", "gpt", "recurrent", "vision"}) {
        for (const int threads : {1, 2}) {
          if (!any_wanted(program, threads) || (only_threads != 0 && threads != only_threads)) continue;
          if (std::thread::hardware_concurrency() < static_cast<unsigned>(threads)) {
            skip(program + " with " + std::to_string(threads) + " threads: this machine has fewer cores");
            continue;
          }
          std::fprintf(stderr, "round %d of %d: %s, threads: %d\n", round + 1, repeats, program.c_str(), threads);
          std::vector<Contender> contenders = contenders_of(program);
          if (round % 2 == 1) std::reverse(contenders.begin(), contenders.end());
          for (const Contender& contender : contenders) run(contender, program, threads);
        }
      }
    }
  }

  void measure_sample_memory() {
    const std::string sample = arguments_.get("sample");
    if (sample.empty() || !wanted("sample_peak_memory")) return;
    const std::filesystem::path scratch = std::filesystem::temp_directory_path() / "lockstep_bench_sample";
    std::filesystem::remove_all(scratch);
    std::filesystem::create_directories(scratch);
    const std::filesystem::path here = std::filesystem::current_path();
    std::filesystem::current_path(scratch);  // the sample writes a model and metrics to its working folder
    const ProcessResult result = run_process({sample, "--epochs", "20"}, {.pin = true});
    std::filesystem::current_path(here);
    std::filesystem::remove_all(scratch);
    if (result.exit_code == 0)
      figures_.add("sample_peak_memory", "ours", result.peak_mb);
    else
      skip("sample_peak_memory: the sample ended with " + std::to_string(result.exit_code));
  }

  void measure_compile_cost() {
    if (!wanted("header_lines") && !wanted("compile_contract_01_time") && !wanted("compile_contract_01_memory")) return;
    const std::string include = arguments_.get("include");
    for (int i = 0; i < 3; ++i) compile("ours", {"-I" + include}, arguments_.get("contract"));
    lines("ours", {"-I" + include}, "#include <lockstep/lockstep.h>\n");
    if (const std::string source = arguments_.get("peer-source"); !source.empty()) {
      const std::vector<std::string> flags = split(arguments_.get("peer-flags"), ' ');
      const std::string name = arguments_.get("peer-source-name", "LibTorch");
      compile(name, flags, source);
      lines(name, flags, "#include <torch/torch.h>\n");
    }
  }

  void take_given_rows() {
    for (const std::string& row : arguments_.all("row")) {
      const std::vector<std::string> parts = split(row, '=');
      figures_.add(parts.at(0), "ours", std::stod(parts.at(1)));
    }
  }

  // Prints the table and returns it as JSON. A row without our figure is omitted.
  json report() const {
    std::printf("\n%-36s %12s %12s %7s  %-22s %-4s %s\n", "work", "ours", "best peer", "ratio", "goal", "met", "peer");
    json rows = json::array();
    for (const Goal& goal : kGoals) {
      if (!wanted(goal.name)) continue;
      if (const auto ours = figures_.median(goal.name, "ours")) rows.push_back(report(goal, *ours));
    }
    std::printf("\n");
    for (const std::string& text : skipped_) std::printf("skipped: %s\n", text.c_str());
    return {{"machine", machine()}, {"rows", rows}, {"skipped", skipped_}};
  }

 private:
  bool wanted(const std::string& row) const { return row.find(filter_) != std::string::npos; }
  bool any_wanted(const std::string& program, int threads) const {
    return std::any_of(kGoals.begin(), kGoals.end(), [&](const Goal& goal) {
      return goal.program == program && goal.threads == threads && wanted(goal.name);
    });
  }
  void skip(const std::string& text) {
    if (std::find(skipped_.begin(), skipped_.end(), text) == skipped_.end()) skipped_.push_back(text);
  }

  std::vector<Contender> contenders_of(const std::string& program) const {
    const std::string bin = arguments_.get("bin");
    std::vector<Contender> contenders{{.name = "ours", .command = {bin + "/bench_" + program}, .environment = {}}};
    for (const auto& [of, bare] : {std::pair("mlp", "/bench_dnnl_bare"), std::pair("gpt", "/bench_dnnl_gpt")}) {
      if (program == of && std::filesystem::exists(bin + bare))
        contenders.push_back({.name = "bare oneDNN", .command = {bin + bare}, .environment = {}});
    }
    static const std::set<std::string> programs_in_python{"attention", "gpt", "recurrent", "vision"};
    if (programs_in_python.contains(program)) {
      if (const std::vector<std::string> torch = split(arguments_.get("torch"), '='); torch.size() == 2)
        contenders.push_back(
            {.name = torch[0], .command = {torch[1], "bench/peers/torch_" + program + ".py"}, .environment = {}});
      return contenders;
    }
    for (const std::string& peer : arguments_.all("peer")) {
      const std::vector<std::string> parts = split(peer, '=');
      Contender contender{.name = parts.at(0), .command = {parts.at(1) + "/libtorch_" + program}, .environment = {}};
      if (parts.size() > 2) contender.environment.emplace_back("ATEN_CPU_CAPABILITY", parts[2]);
      contenders.push_back(std::move(contender));
    }
    return contenders;
  }

  void run(const Contender& contender, const std::string& program, int threads) {
    ProcessOptions options{.environment = contender.environment, .pin = threads == 1};
    for (const char* name : {"OMP_NUM_THREADS", "BENCH_THREADS"})
      options.environment.emplace_back(name, std::to_string(threads));
    options.environment.emplace_back("BENCH_FILTER", filter_);
    const ProcessResult result = run_process(contender.command, options);
    if (result.exit_code != 0) {
      skip(contender.name + ": " + program + " ended with " + std::to_string(result.exit_code));
      return;
    }
    for (const std::string& line : split(result.output, '\n')) {
      const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!row.is_object() || !row.contains("name") || !(row.contains("seconds") || row.contains("mb"))) continue;
      std::string name = row["name"], of = contender.name;
      for (const Reference& reference : kReferences) {
        if (name.starts_with(reference.prefix)) name.erase(0, reference.prefix.size()), of = reference.name;
      }
      figures_.add(name, of, row.contains("mb") ? row["mb"].get<double>() : row["seconds"].get<double>() * 1e6);
    }
    // Our sample's memory is compared with a LibTorch program that trains a logistic regression.
    if (program == "small" && contender.name != "ours") {
      figures_.add("sample_peak_memory", contender.name, result.peak_mb);
    }
  }

  void compile(const std::string& contender, const std::vector<std::string>& flags, const std::string& source) {
    std::vector<std::string> command{"g++", "-std=c++20", "-O2", "-c", source, "-o", "/dev/null"};
    command.insert(command.end(), flags.begin(), flags.end());
    const ProcessResult result = run_process(command, {.pin = true});
    if (result.exit_code != 0) return skip(contender + ": " + source + " does not compile");
    figures_.add("compile_contract_01_time", contender, result.seconds);
    figures_.add("compile_contract_01_memory", contender, result.peak_mb);
  }

  void lines(const std::string& contender, const std::vector<std::string>& flags, const std::string& text) {
    const std::filesystem::path file = std::filesystem::temp_directory_path() / "lockstep_bench_header.cpp";
    std::ofstream(file) << text;
    std::vector<std::string> command{"g++", "-std=c++20", "-E", "-P", file.string()};
    command.insert(command.end(), flags.begin(), flags.end());
    const ProcessResult result = run_process(command, {});
    std::filesystem::remove(file);
    if (result.exit_code != 0) return skip(contender + ": its header does not compile");
    const std::vector<std::string> all = split(result.output, '\n');
    const auto blank = [](const std::string& line) { return line.find_first_not_of(" \t") == std::string::npos; };
    figures_.add("header_lines", contender,
                 static_cast<double>(all.size()) - std::count_if(all.begin(), all.end(), blank));
  }

  std::pair<std::string, double> best_peer(const Goal& goal) const {
    std::pair<std::string, double> best{"", std::numeric_limits<double>::infinity()};
    for (const auto& [contender, value] : figures_.medians(goal.name)) {
      const bool is_framework = contender != "ours" && std::none_of(kReferences.begin(), kReferences.end(),
                                                                    [&name = contender](const Reference& reference) {
                                                                      return reference.name == name;
                                                                    });
      const bool candidate = goal.against.empty() ? is_framework : contender.starts_with(goal.against);
      if (candidate && value < best.second) best = {contender, value};
    }
    return best;
  }

  json report(const Goal& goal, double ours) const {
    const auto [peer, theirs] = best_peer(goal);
    const bool has_peer = !peer.empty();
    const double ratio = has_peer ? theirs / ours : kNone;

    std::ostringstream text;
    std::string verdict = "-";
    if (!std::isnan(goal.at_most)) {
      text << "<= " << goal.at_most << ' ' << goal.unit;
      verdict = ours <= goal.at_most ? "yes" : "NO";
    }
    if (!std::isnan(goal.at_least)) {
      text << (verdict == "-" ? "" : ", ") << ">= " << std::setprecision(3) << goal.at_least << 'x';
      if (has_peer && ratio < goal.at_least)
        verdict = "NO";
      else if (verdict != "NO")
        verdict = has_peer ? "yes" : "-";  // without the peer the result is unknown
    }
    const auto number = [](double value) {
      std::ostringstream stream;
      stream.precision(value >= 1000 ? 6 : 4);
      stream << value;
      return stream.str();
    };
    std::printf("%-36s %12s %12s %7s  %-22s %-4s %s\n", (goal.name + " [" + goal.unit + "]").c_str(),
                number(ours).c_str(), has_peer ? number(theirs).c_str() : "-",
                has_peer ? number(std::round(ratio * 100) / 100).c_str() : "-", text.str().c_str(), verdict.c_str(),
                peer.c_str());
    json row{{"name", goal.name}, {"unit", goal.unit}, {"ours", ours}, {"goal", text.str()}, {"met", verdict}};
    row["all"] = figures_.medians(goal.name);
    if (has_peer) row.update({{"peer", peer}, {"peer_figure", theirs}, {"ratio", ratio}});
    return row;
  }

  static json machine() {
    json result;
    std::ifstream cpu("/proc/cpuinfo");
    for (std::string line; std::getline(cpu, line);) {
      if (line.starts_with("model name")) result["cpu"] = line.substr(line.find(':') + 2);
    }
    utsname system{};
    if (uname(&system) == 0) result["system"] = std::string(system.sysname) + " " + system.release;
    double load = 0;
    if (getloadavg(&load, 1) == 1) result["load"] = load;
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
    comparison.take_given_rows();
    // First, because a process starts as a copy of this one, whose memory counts as its own.
    comparison.measure_sample_memory();
    comparison.measure_compile_cost();
    comparison.measure_times();
    const json result = comparison.report();
    const std::string file = arguments.get("result");
    std::ofstream stream(file);
    stream << result.dump(2) << '\n';
    if (!stream) throw std::runtime_error("cannot write " + file);
    std::printf("the same as JSON: %s\n", file.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_run: %s\n", error.what());
    return 1;
  }
}
