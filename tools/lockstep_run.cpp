// lockstep-run: starts the ranks of a job on this host.
//   lockstep-run --nproc-per-node 2 ./program --its-own arguments
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/parallel/launcher.h"

namespace par = lockstep::parallel;

namespace {

// "a-b" as CLI11 wants a flag with both spellings: "--a-b,--a_b".
std::string both_spellings(std::string name) {
  std::string other = name;
  for (char& c : other) c = c == '-' ? '_' : c;
  return other == name ? "--" + name : "--" + name + ",--" + other;
}

struct Arguments {
  std::string nproc = "1";
  double grace = 30;
  bool no_prefix = false, ignored = false;
};

int number_of_ranks(const std::string& text) {
  if (text == "auto" || text == "cpu") return par::usable_cores();
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1)
    throw CLI::ValidationError("--nproc-per-node", "is \"" + text + "\", expected a number from 1, or auto");
  return count;
}

void declare(CLI::App& app, Arguments& arguments) {
  app.option_defaults()->always_capture_default();
  app.add_option(both_spellings("nproc-per-node"), arguments.nproc, "ranks to start; auto: one for each usable core")
      ->type_name("N|auto");
  app.add_option(both_spellings("shutdown-timeout"), arguments.grace,
                 "seconds between SIGTERM and SIGKILL when a rank has failed")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_flag(both_spellings("no-prefix"), arguments.no_prefix,
               "let ranks write directly, without \"[rank] \" before each line");
  // What torchrun has, so that its command lines work; here they change nothing.
  app.add_flag("--standalone", arguments.ignored, "accepted: every run is");
  app.add_flag(both_spellings("no-python"), arguments.ignored, "accepted: every program is run directly");
  app.prefix_command();  // the first thing that is no option, and all behind it, is the program's
  app.footer(
      "Options end at the program's name. Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and "
      "the\n"
      "others that torchrun sets, LOCKSTEP_JOB_TOKEN, and LOCKSTEP_NUM_THREADS (usable cores / ranks, unless set).\n"
      "When a rank fails the others are stopped, and its exit code (128 + signal) becomes this program's.\n"
      "Ctrl-C and SIGTERM are handed on to all ranks; the second one kills them.");
}

// One write for a line: what several runs write to one terminal stays readable.
void print_line(int rank, bool is_stderr, const std::string& line) {
  const std::string text = fmt::format("[{}] {}\n", rank, line);
  std::FILE* const file = is_stderr ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Starts the ranks of a job on this host and sees to it that they end together:\n"
      "  lockstep-run [OPTIONS] PROGRAM [ARGUMENTS...]",
      "lockstep-run");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
    std::vector<std::string> command = app.remaining();
    if (!command.empty() && command[0] == "--") command.erase(command.begin());
    if (command.empty()) throw CLI::RequiredError("PROGRAM");
    if (command[0].starts_with("-")) throw CLI::ExtrasError({command[0]});
    const int nproc = number_of_ranks(arguments.nproc);
    const par::StopSignals signals;
    par::OutputCallback on_line;
    if (!arguments.no_prefix) on_line = print_line;
    const par::LaunchResult result =
        par::launch({.nproc = nproc,
                     .command = command,
                     .grace = std::chrono::milliseconds(static_cast<long>(arguments.grace * 1000)),
                     .stop_fd = signals.fd()},
                    std::move(on_line));
    const std::string summary = result.summary();
    if (!summary.empty()) fmt::print(stderr, "lockstep-run: {}", summary);
    return result.exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-run: {}\n", error.what());
    return 1;
  }
}
