// lockstep-run: starts the ranks of a job.
//   lockstep-run -n 2 ./program --its-own arguments
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/device.h"
#include "lockstep/parallel/launch/launch.h"
#include "tools/command_line.h"

namespace par = lockstep::parallel;

namespace {

// One write for a line, so that lines of several runs on one terminal stay whole.
void print_line(const std::string& text, bool is_stderr) {
  std::FILE* const file = is_stderr ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

struct Arguments {
  std::string nproc = "1", nnodes = "1", endpoint, master = "127.0.0.1", run_id, log_dir, redirects = "0", tee = "0";
  int node_rank = 0, master_port = 29500, max_restarts = 0;
  double grace = 30;
  bool no_prefix = false, no_pty = false, new_token = false, standalone = false;
  bool flag_ignored = false;
  std::string ignored;
};

// --- the command line ---------------------------------------------------------------------------------------------------

// "a-b" as CLI11 wants a flag with both spellings: "--a-b,--a_b".
std::string both_spellings(std::string name) {
  std::string other = name;
  for (char& c : other) c = c == '-' ? '_' : c;
  return other == name ? "--" + name : "--" + name + ",--" + other;
}

// torchrun's variable for an option: PET_NPROC_PER_NODE.
std::string variable_of(std::string name) {
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return "PET_" + name;
}

class Declaration {
 public:
  explicit Declaration(CLI::App& app) : app_(app) { app.option_defaults()->always_capture_default(); }
  void group(const char* name) { app_.option_defaults()->group(name); }
  template <class T>
  CLI::Option* option(const std::string& name, T& value, const char* type, const char* text,
                      const char* more_names = "") {
    return app_.add_option(both_spellings(name) + more_names, value, text)->type_name(type)->envname(variable_of(name));
  }
  void flag(const std::string& name, bool& value, const char* text) {
    app_.add_flag(both_spellings(name), value, text);
  }

 private:
  CLI::App& app_;
};

void declare_ranks(Declaration& add, Arguments& arguments) {
  add.group("Ranks of this host");
  add.option("nproc-per-node", arguments.nproc, "N|auto", "ranks to start here; auto: one for each usable core",
             ",-n,--nproc");
  add.option("max-restarts", arguments.max_restarts, "N",
             "restart all ranks at most N times when one has failed; one host only")
      ->check(command_line::range(0, std::numeric_limits<int>::max()));
  add.option("shutdown-timeout", arguments.grace, "SECONDS", "between SIGTERM and SIGKILL when a rank has failed")
      ->check(command_line::range(0.0, 86400.0));
}

void declare_output(Declaration& add, Arguments& arguments) {
  add.group("Output");
  add.flag("no-prefix", arguments.no_prefix, "print ranks' output without \"[rank] \" before each line");
  add.flag("no-pty", arguments.no_pty, "ranks write stdout to a pipe instead of a pseudo-terminal");
  add.option("log-dir", arguments.log_dir, "FOLDER", "folder for --redirects, --tee and failed ranks' errors");
  add.option("redirects", arguments.redirects, "STREAMS",
             "write to files only: 1 stdout, 2 stderr, 3 both; or 0:3,1:1 by local rank", ",-r");
  add.option("tee", arguments.tee, "STREAMS", "like --redirects, but write to files and to the terminal", ",-t");
}

void declare_nodes(Declaration& add, Arguments& arguments) {
  add.group("Several hosts");
  add.option("nnodes", arguments.nnodes, "N", "hosts of the job; start lockstep-run on each, with its own --node-rank");
  add.option("node-rank", arguments.node_rank, "N", "this host's number, from 0")
      ->check(command_line::range(0, std::numeric_limits<int>::max()));
  add.option("master-addr", arguments.master, "HOST", "address of host 0");
  add.option("master-port", arguments.master_port, "PORT", "port of host 0 on which rank 0 listens")
      ->check(command_line::range(1, 65535));
  add.option("rdzv-endpoint", arguments.endpoint, "ADDRESS",
             "--master-addr and --master-port in one: HOST or HOST:PORT");
  add.option("rdzv-id", arguments.run_id, "ID", "a name for the run, the same on all hosts");
  add.flag("standalone", arguments.standalone, "one host; overrides the options above");
  add.flag("new-token", arguments.new_token,
           "print a token for LOCKSTEP_JOB_TOKEN, which several hosts need, and exit");
}

// Options of torchrun, so that its command lines work.
void declare_ignored(Declaration& add, Arguments& arguments) {
  add.group("Options of torchrun without an effect here");
  add.flag("no-python", arguments.flag_ignored, "every program is run directly");
  add.option("monitor-interval", arguments.ignored, "SECONDS", "failures are detected immediately");
  for (const char* name : {"rdzv-backend", "rdzv-conf", "role", "start-method"})
    add.option(name, arguments.ignored, "TEXT", "ignored");
}

void declare(CLI::App& app, Arguments& arguments) {
  Declaration add(app);
  declare_ranks(add, arguments);
  declare_output(add, arguments);
  declare_nodes(add, arguments);
  declare_ignored(add, arguments);
  app.prefix_command();  // the first argument that is no option, and all after it, belong to the program
  app.footer(
      "Examples:\n"
      "  lockstep-run -n 2 ./program --its-own arguments\n"
      "  lockstep-run -n auto --max-restarts 3 --log-dir logs --tee 3 ./program\n"
      "\n"
      "Options end at the program's name. PET_<NAME> variables also set them: PET_NPROC_PER_NODE=2.\n"
      "\n"
      "Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and torchrun's other\n"
      "variables, LOCKSTEP_JOB_TOKEN, and LOCKSTEP_NUM_THREADS (usable cores / ranks, unless set).\n"
      "\n"
      "stdout of a rank is a pseudo-terminal, so that each line is shown when it is written, and none is\n"
      "lost when the rank aborts. isatty(1) is true, and TERM is dumb. stdout is a pipe, and isatty(1) is\n"
      "false, with --no-pty and where the system has no pseudo-terminals. With --no-prefix and no --log-dir\n"
      "it is the stdout of lockstep-run. stderr is a pipe, stdin is /dev/null.\n"
      "\n"
      "When a rank fails the others are stopped. SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on\n"
      "to all ranks; a second one kills them, unless it is the same signal within 0.5 s of the first.\n"
      "\n"
      "Exit code: 0 if all ranks exited with 0, also after a signal; that of the rank that failed first,\n"
      "128 + signal if a signal killed it; 128 + signal after a second signal; 2 for a wrong command line;\n"
      "1 if no rank could be started or watched.");
  command_line::complete(app);
}

// --- from text to options -----------------------------------------------------------------------------------------------

std::optional<int> to_number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int number_of_ranks(const std::string& text) {
  if (text == "auto" || text == "cpu") return lockstep::usable_cores();
  const auto count = to_number(text);
  if (!count || *count < 1)
    throw CLI::ValidationError("--nproc-per-node", "is \"" + text + "\", expected a number from 1, or auto");
  return *count;
}

int number_of_nodes(const std::string& text) {
  const auto count = to_number(text);
  if (text.find(':') != std::string::npos)
    throw CLI::ValidationError("--nnodes", "is \"" + text +
                                               "\", expected one number\nFor a job whose number of hosts " +
                                               "may change use torchrun, which starts the same program");
  if (!count || *count < 1) throw CLI::ValidationError("--nnodes", "is \"" + text + "\", expected a number from 1");
  return *count;
}

// "3", or "0:3,1:1".
par::StreamChoice to_streams(const char* flag, const std::string& text) {
  const auto streams = [&](const std::string& part) {
    const auto value = to_number(part);
    if (!value || *value < 0 || *value > 3)
      throw CLI::ValidationError(flag, "is \"" + text + "\", expected 0 to 3, or RANK:0..3 with commas between");
    return *value;
  };
  par::StreamChoice choice;
  if (text.find(':') == std::string::npos) {
    choice.all = streams(text);
    return choice;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const auto colon = part.find(':');
    const auto rank = to_number(part.substr(0, colon));
    if (colon == std::string::npos || !rank) streams("");
    choice.by_local_rank.emplace_back(*rank, streams(part.substr(colon + 1)));
    begin = end + 1;
  }
  return choice;
}

par::NodeOptions to_nodes(const Arguments& arguments) {
  if (arguments.standalone) return {};
  par::NodeOptions nodes{.count = number_of_nodes(arguments.nnodes),
                         .rank = arguments.node_rank,
                         .address = arguments.master,
                         .port = arguments.master_port};
  if (arguments.endpoint.empty()) return nodes;
  const auto colon = arguments.endpoint.rfind(':');
  const bool has_port = colon != std::string::npos && arguments.endpoint.find(']', colon) == std::string::npos;
  nodes.address = arguments.endpoint.substr(0, has_port ? colon : std::string::npos);
  const auto port = has_port ? to_number(arguments.endpoint.substr(colon + 1)) : std::optional(nodes.port);
  if (!port || *port < 1 || *port > 65535 || nodes.address.empty())
    throw CLI::ValidationError("--rdzv-endpoint", "is \"" + arguments.endpoint + "\", expected HOST or HOST:PORT");
  nodes.port = *port;
  return nodes;
}

par::LaunchOptions to_options(const Arguments& arguments, std::vector<std::string> command) {
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  if (command.empty()) throw CLI::RequiredError("PROGRAM");
  if (command[0].starts_with("-")) throw CLI::ExtrasError({command[0]});
  par::LogOptions logs{.folder = arguments.log_dir,
                       .redirects = to_streams("--redirects", arguments.redirects),
                       .tee = to_streams("--tee", arguments.tee)};
  if (logs.folder.empty() && (arguments.redirects != "0" || arguments.tee != "0"))
    throw CLI::RequiredError("--log-dir (for --redirects and --tee)");
  return {.nproc = number_of_ranks(arguments.nproc),
          .command = std::move(command),
          .grace = std::chrono::milliseconds(static_cast<long>(arguments.grace * 1000)),
          .max_restarts = arguments.max_restarts,
          .run_id = arguments.run_id,
          .nodes = to_nodes(arguments),
          .logs = std::move(logs),
          .pty = !arguments.no_pty};
}

// --- running ------------------------------------------------------------------------------------------------------------

void report(const par::LaunchResult& result, const std::string& then) {
  if (result.exit_code != 0) fmt::print(stderr, "lockstep-run: {}{}", result.summary(), then);
}

// A choice for a rank that does not exist would have no effect.
void check_local_ranks(const char* flag, const par::StreamChoice& choice, int nproc) {
  for (const auto& [rank, ignored] : choice.by_local_rank) {
    if (rank < 0 || rank >= nproc)
      throw CLI::ValidationError(flag, fmt::format("names local rank {}, and the local ranks are 0 to {}\n"
                                                   "Name one of these, or start more ranks with --nproc-per-node",
                                                   rank, nproc - 1));
  }
}

int run(const Arguments& arguments, par::LaunchOptions options) {
  check_local_ranks("--redirects", options.logs.redirects, options.nproc);
  check_local_ranks("--tee", options.logs.tee, options.nproc);
  const par::StopSignals signals;
  options.stop_fd = signals.fd();
  par::OutputCallback on_line;
  if (!arguments.no_prefix)
    on_line = [](int rank, bool is_stderr, const std::string& line) {
      print_line(fmt::format("[{}] {}\n", rank, line), is_stderr);
    };
  else if (!arguments.log_dir.empty())
    on_line = [](int, bool is_stderr, const std::string& line) { print_line(line + "\n", is_stderr); };
  const par::LaunchResult result =
      par::launch(options, std::move(on_line), [&](const par::LaunchResult& failed, std::chrono::milliseconds pause) {
        const std::string when = pause.count() > 0 ? fmt::format(" in {} s", pause.count() / 1e3) : "";
        report(failed,
               fmt::format("lockstep-run: restart {} of {}{}\n", failed.attempt + 1, options.max_restarts, when));
      });
  report(result, "");
  return result.exit_code;
}

int run_as_told(const CLI::App& app, const Arguments& arguments) {
  if (!arguments.new_token) return run(arguments, to_options(arguments, app.remaining()));
  if (!app.remaining().empty())
    throw CLI::ValidationError("--new-token", "prints a token and starts nothing; leave the program out");
  fmt::print("{}\n", par::new_job_token());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Starts the ranks of a job and makes sure that they end together", "lockstep-run");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
    return run_as_told(app, arguments);
  } catch (const CLI::ParseError& error) {
    return command_line::report(app, error);
  } catch (const lockstep::InvalidArgument& error) {
    fmt::print(stderr, "lockstep-run: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-run: {}\n", error.what());
    return 1;
  }
}
