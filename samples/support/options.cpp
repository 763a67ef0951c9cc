#include "support/options.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "support/ranks.h"

namespace samples {
namespace {

// The arguments with quotes where a shell needs them.
std::string typed_command(int argc, char** argv) {
  const std::string harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (i > 0) command += ' ';
    if (!argument.empty() && argument.find_first_not_of(harmless) == std::string::npos) {
      command += argument;
      continue;
    }
    command += '\'';
    for (char c : argument) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
    command += '\'';
  }
  return command;
}

// In which mode to run where nothing is said; and what does not fit together.
void settle_mode(Options& options, bool is_nproc_given) {
  const bool is_rank = samples::is_rank();
  if (options.mode.empty()) options.mode = is_rank || is_nproc_given ? "ddp" : "single";
  if (options.nproc == 0) options.nproc = options.shards;
  if (is_rank && options.mode != "ddp")
    throw CLI::ValidationError("--mode", options.mode +
                                             " is for a program that is started once, and this is a rank of "
                                             "a launcher; take --mode ddp here");
  if (!is_rank && is_nproc_given && options.mode != "ddp" && options.mode != "compare")
    throw CLI::ValidationError("--nproc", "is for --mode ddp and --mode compare, and the mode is " + options.mode);
  if (options.backend != "shm" && options.mode != "ddp" && options.mode != "compare")
    throw CLI::ValidationError(
        "--backend", options.backend + " is for --mode ddp and --mode compare, and the mode is " + options.mode);
  if (options.order != "canonical" && options.backend != "shm")
    throw CLI::ValidationError("--order",
                               options.order + " is for --backend shm, and the backend is " + options.backend);
  if (options.order != "canonical" && options.mode != "ddp")
    throw CLI::ValidationError("--order", options.order + " is for --mode ddp, and the mode is " + options.mode);
  const bool on_gpu = options.device != "cpu";
  if (on_gpu && options.mode == "compare")
    throw CLI::ValidationError("--device", options.device + " is not for --mode compare, whose bits are the CPU's");
  if (options.backend == "nccl" && (!on_gpu || options.mode == "compare"))
    throw CLI::ValidationError("--backend", "nccl is for --mode ddp with --device cuda");
  if (options.comm_hook != "none" && options.mode != "ddp")
    throw CLI::ValidationError("--comm-hook",
                               options.comm_hook + " is for --mode ddp, and the mode is " + options.mode);
  if (!options.inject.empty() && options.mode != "ddp")
    throw CLI::ValidationError("--inject", "is for --mode ddp, and the mode is " + options.mode);
}

}  // namespace

Options parse(int argc, char** argv, Options options) {
  CLI::App app(options.about, options.program);
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option(options.data_flag, options.data, options.data_help);
  app.add_option("--epochs", options.epochs, "passes over the training data")->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--batch", options.batch, "examples a step")->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--lr", options.lr, "learning rate");
  app.add_option("--seed", options.seed, "of the initial weights and of the order of examples")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  app.add_option("--out", options.out, "folder for what is written (runs/" + options.program + ")");
  app.add_option("--save", options.save, "checkpoint file (checkpoint.safetensors in --out)");
  app.add_option("--save-every", options.save_every,
                 "epochs between two checkpoints (0: when the last one is a second old)")
      ->check(CLI::Range(0, 1'000'000'000));
  app.add_option("--resume", options.resume,
                 "auto: go on where the same command was interrupted; yes: go on or fail, also with more epochs; "
                 "no: start afresh")
      ->check(CLI::IsMember({"auto", "yes", "no"}));
  app.add_option("--mode", options.mode,
                 "single: one device; shards: a step's shards in turn; dp: DataParallel, a device each; "
                 "ddp: DistributedDataParallel, in several processes; compare: all of them (single; with --nproc: ddp)")
      ->check(CLI::IsMember({"single", "shards", "dp", "ddp", "compare"}));
  app.add_option("--shards", options.shards, "parts of a step, over all devices and ranks; the bits depend on it")
      ->check(CLI::Range(1, 256));
  const CLI::Option* nproc = app.add_option("--nproc", options.nproc, "ranks that mode ddp starts (one for each shard)")
                                 ->check(CLI::Range(1, 256));
  app.add_option(
         "--device", options.device,
         "cpu, cuda or cuda:N. With cuda, mode dp takes cuda:0, cuda:1, ... and each rank of ddp one of its host's "
         "GPUs, again from the first where there are fewer")
      ->check([](const std::string& text) {
        const bool known = text == "cpu" || text == "cuda" ||
                           (text.starts_with("cuda:") && text.size() > 5 && text.size() < 8 &&
                            text.find_first_not_of("0123456789", 5) == std::string::npos);
        return known ? std::string() : text + " is none of cpu, cuda and cuda:N";
      });
  app.add_option("--loss", options.loss, "of mode dp. outside: on the gathered outputs; replica: on each device")
      ->check(CLI::IsMember({"outside", "replica"}));
  app.add_option(
         "--backend", options.backend,
         "of mode ddp. shm: shared memory; gloo: TCP; mpi: over MPI, whose mpirun starts the ranks; nccl: of GPUs")
      ->check(CLI::IsMember({"shm", "gloo", "mpi", "nccl"}));
  app.add_option(
         "--order", options.order,
         "of mode ddp, in which order ranks are added. canonical: always the same; arrival: as they come, to see "
         "other bits each time; own-first: each rank its own gradient first, to see other bits on each rank")
      ->check(CLI::IsMember({"canonical", "arrival", "own-first"}));
  app.add_option(
         "--comm-hook", options.comm_hook,
         "of mode ddp, how gradients travel. none: exactly; fp16, bf16: in half the bytes; powersgd: as products "
         "of thin matrices, after 10 steps")
      ->check(CLI::IsMember({"none", "fp16", "bf16", "powersgd"}));
  app.add_flag("--cuda-graph", options.cuda_graph, "on a cuda device, steps as replays of one that was recorded");
  app.add_option(
      "--inject", options.inject,
      "of mode ddp, a fault on purpose: kill:rank=1,step=17; stop:, drop:, corrupt: or mismatch: likewise, or "
      "delay:rank=1,step=17,ms=200. Ranks that a launcher starts again meet none");
  app.add_option("--timeout", options.timeout, "of mode ddp: seconds that a rank waits for the others")
      ->check(CLI::Range(0.001, 86400.0));
  app.add_option("--trace", options.trace, "traces the run into this file, for chrome://tracing or ui.perfetto.dev");
  app.add_option("--report", options.report, "traces the run, and shows its last steps in this HTML file");
  app.add_flag("--explain", options.explain, "traces the run, and says in words what happens in its last step");
  app.add_flag("--trace-kernels", options.trace_kernels, "traces have the CPU's kernels, too, which costs more time");
  app.add_option("--timeline", options.timeline, "traces the run into this file, for other tools")->group("");
  app.add_flag("--quiet", options.quiet, "no line for each epoch, no summary");
  try {
    app.parse(argc, argv);
    settle_mode(options, nproc->count() > 0);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (options.out.empty()) options.out = "runs/" + options.program;
  if (options.save.empty()) options.save = options.out + "/checkpoint.safetensors";
  const char* const typed = std::getenv(kTypedCommand);
  options.command = typed ? typed : typed_command(argc, argv);
  options.arguments.assign(argv + 1, argv + argc);
  return options;
}

}  // namespace samples
