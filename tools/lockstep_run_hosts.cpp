#include "tools/lockstep_run_hosts.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace par = lockstep::parallel;

namespace {

constexpr const char* kToken = "LOCKSTEP_JOB_TOKEN";

// LOCKSTEP_* but the token, which is new for each job, and what --export names.
std::vector<std::string> environment_for(const std::vector<std::string>& exported) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (text.starts_with("LOCKSTEP_") && !text.starts_with(std::string(kToken) + "=")) out.push_back(text);
  }
  for (const std::string& entry : exported) {
    const bool has_value = entry.find('=') != std::string::npos;
    const char* const value = has_value ? nullptr : std::getenv(entry.c_str());
    if (entry.empty() || entry[0] == '=' || (!has_value && !value))
      throw CLI::ValidationError("--export",
                                 "\"" + entry + "\" is no variable that is set; expected NAME or NAME=VALUE");
    out.push_back(has_value ? entry : entry + "=" + value);
  }
  return out;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

// Prints the table. False: something stands against a start.
bool has_passed(const std::vector<par::HostReport>& reports, bool is_only) {
  print_line(par::to_table(reports), !is_only);
  bool is_right = true;
  for (const par::HostReport& report : reports) {
    if (report.error.empty()) continue;
    fmt::print(stderr, "lockstep-run: host {}: {}\n", report.host, report.error);
    is_right = false;
  }
  if (!is_right && !is_only)
    fmt::print(stderr, "lockstep-run: nothing was started; --no-preflight starts without a look\n");
  return is_right;
}

}  // namespace

void print_line(const std::string& text, bool is_stderr) {
  std::FILE* const file = is_stderr ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

std::vector<std::string> flags_of(const CLI::App& app) {
  static constexpr std::string_view kOnlyHere[] = {
      "--hosts",        "--hostfile",  "--ssh",         "--remote-path", "--export",      "--preflight",     "--nnodes",
      "--no-preflight", "--node-rank", "--master-addr", "--standalone",  "--master-port", "--rdzv-endpoint", "--help"};
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = "--" + option->get_lnames()[0];
    if (option->count() == 0 || std::find(std::begin(kOnlyHere), std::end(kOnlyHere), name) != std::end(kOnlyHere))
      continue;
    const bool is_flag = option->get_expected_max() == 0;
    out.push_back(is_flag ? name : name + "=" + option->results().back());
  }
  return out;
}

par::HostsOptions to_hosts(const HostsArguments& arguments, std::vector<std::string> flags) {
  if (!arguments.list.empty() && !arguments.file.empty())
    throw CLI::ValidationError("--hosts", "and --hostfile are both given; one says it all");
  par::HostsOptions options;
  options.hosts = arguments.file.empty() ? par::parse_hosts(arguments.list) : par::read_hosts(arguments.file);
  options.ssh = words_of(arguments.ssh);
  const std::string own = std::filesystem::read_symlink("/proc/self/exe").string();
  options.remote_path = arguments.remote_path.empty() ? own : arguments.remote_path;
  options.folder = std::filesystem::current_path().string();
  options.arguments = std::move(flags);
  options.environment = environment_for(arguments.exported);
  return options;
}

int run_hosts(const HostsArguments& arguments, par::HostsOptions options) {
  const par::StopSignals signals;
  options.stop_fd = signals.fd();
  if (arguments.only_preflight || !arguments.no_preflight) {
    const bool passed = has_passed(par::check_hosts(options), arguments.only_preflight);
    if (arguments.only_preflight || !passed) return passed ? 0 : 1;
  }
  const par::HostsResult result = par::launch_on_hosts(
      options, [](const std::string&, bool is_stderr, const std::string& line) { print_line(line + "\n", is_stderr); });
  const std::string summary = result.summary();
  if (!summary.empty()) fmt::print(stderr, "lockstep-run: {}", summary);
  return result.exit_code;
}

par::Assignment take_assignment() {
  ::signal(SIGPIPE, SIG_IGN);  // where the connection is lost, ranks are still to be stopped as they should
  par::Assignment assignment = par::read_assignment(STDIN_FILENO);
  if (assignment.token.empty()) throw std::runtime_error("stdin: the assignment has no token");
  if (::chdir(assignment.folder.c_str()) != 0)
    throw std::runtime_error(
        fmt::format("cannot work in {}: {}\nMake it on this host, or start from a folder that all "
                    "hosts have",
                    assignment.folder, std::strerror(errno)));
  for (const std::string& entry : assignment.environment) {
    const std::size_t end = entry.find('=');
    if (end == std::string::npos || ::setenv(entry.substr(0, end).c_str(), entry.substr(end + 1).c_str(), 1) != 0)
      throw std::runtime_error("stdin: the assignment has a variable without a name or value");
  }
  return assignment;
}
