#include "support/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "support/ranks.h"
#include "support/timeline.h"
#include "tools/command_line.h"

namespace samples {
namespace {

// The command line, quoted for a shell where necessary.
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

// Declares the flags and the modes in which each has an effect. A flag in another mode is an error, so that none is
// silently ignored.
class Flags {
 public:
  using Modes = std::vector<std::string>;
  explicit Flags(CLI::App& app) : app_(app) {
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  // The heading of the flags declared next.
  void group(const char* name) { app_.option_defaults()->group(name); }
  template <class T>
  CLI::Option* add(const std::string& name, T& value, const std::string& text) {
    if constexpr (std::is_same_v<T, bool>)
      return app_.add_flag(name, value, text);
    else
      return app_.add_option(name, value, text);
  }
  // Declares a flag for these modes only; the help lists them.
  template <class T>
  CLI::Option* add(const Modes& modes, const std::string& name, T& value, const std::string& text) {
    const std::string where = fmt::format("({} {}) ", modes.size() == 1 ? "mode" : "modes", listed(modes));
    return limits_.emplace_back(add(name, value, where + text), modes).first;
  }
  // `reason` says why the mode is this one: "" or ", as ...".
  void check(const std::string& mode, const std::string& reason) const {
    for (const auto& [option, modes] : limits_) {
      if (option->count() == 0 || std::ranges::find(modes, mode) != modes.end()) continue;
      const std::string name = option->get_name();
      throw CLI::ValidationError(name, fmt::format("is for --mode {} only, and the mode is {}{}\n"
                                                   "Choose the mode with --mode, or leave {} out",
                                                   listed(modes), mode, reason, name));
    }
  }

 private:
  static std::string listed(const Modes& modes) { return fmt::format("{}", fmt::join(modes, ", ")); }
  CLI::App& app_;
  std::vector<std::pair<CLI::Option*, Modes>> limits_;
};

void refuse_if(bool is_wrong, const char* flag, const std::string& text) {
  if (is_wrong) throw CLI::ValidationError(flag, text);
}

// Chooses the mode if none is given. Returns the reason for the choice, for Flags::check.
std::string settle_mode(const CLI::App& app, Options& options) {
  if (options.nproc == 0) options.nproc = options.micro_batches;
  if (!options.mode.empty()) return "";
  options.mode = is_rank() || app.count("--nproc") > 0 ? "ddp" : "single";
  return is_rank() ? ", as this is a rank of a launcher" : options.mode == "ddp" ? "" : ", as no --mode is given";
}

// Rejects flags whose values exclude each other.
void check_values(const CLI::App& app, const Options& options) {
  const bool compares = options.mode == "compare", on_gpu = options.device != "cpu";
  refuse_if(compares && on_gpu, "--device",
            options.device + " is not for --mode compare, which compares bits on the CPU; leave --device out");
  refuse_if(options.backend == "nccl" && (!on_gpu || compares), "--backend",
            "nccl is for --mode ddp with --device cuda");
  refuse_if(app.count("--order") > 0 && options.backend == "nccl", "--order",
            "has no effect on --backend nccl, which chooses the order itself; leave --order out");
  refuse_if(options.order != "canonical" && options.backend != "shm", "--order",
            options.order + " is for --backend shm, and the backend is " + options.backend);
  refuse_if(compares && options.order != "canonical", "--order",
            options.order + " is not for --mode compare, which requires the same bits; use --mode ddp");
  refuse_if(compares && options.comm_hook != "none", "--comm-hook",
            options.comm_hook + " is not for --mode compare, which requires the same bits; use --mode ddp");
  refuse_if(options.cuda_graph && !on_gpu, "--cuda-graph",
            "has an effect only on a cuda device, and the device is cpu; use --device cuda");
  refuse_if(options.trace_kernels && !is_traced(options), "--trace-kernels",
            "adds kernels to a trace, and no trace is requested; add --trace, --report or --explain");
}

// Rejects flags that a rank of a launcher must not set: the launcher determines their values.
void check_rank(const CLI::App& app, const Options& options) {
  refuse_if(options.mode != "ddp", "--mode",
            options.mode + " is for a program started once, and this is a rank of a launcher; use --mode ddp");
  refuse_if(app.count("--nproc") > 0, "--nproc",
            "has no effect on a rank of a launcher, which sets the number of ranks; leave --nproc out");
}

// --- the flags ----------------------------------------------------------------------------------------------------------

const Flags::Modes kRankModes = {"ddp", "compare"};

std::string check_device(const std::string& text) {
  const bool is_known = text == "cpu" || text == "cuda" ||
                        (text.starts_with("cuda:") && text.size() > 5 && text.size() < 8 &&
                         text.find_first_not_of("0123456789", 5) == std::string::npos);
  return is_known ? "" : text + " is not one of cpu, cuda and cuda:N";
}

void declare_modes(Flags& flags, Options& options) {
  flags.group("Mode");
  flags
      .add("--mode", options.mode,
           "single: one device; accumulate: the micro-batches of a step one after another; dp: DataParallel, one "
           "device per micro-batch; ddp: DistributedDataParallel, in several processes; compare: all of them")
      ->default_str("single; with --nproc: ddp")
      ->check(CLI::IsMember({"single", "accumulate", "dp", "ddp", "compare"}));
  flags
      .add({"accumulate", "dp", "ddp", "compare"}, "--micro-batches", options.micro_batches,
           "micro-batches per step, over all devices and ranks; the bits depend on this number")
      ->check(command_line::range(1, 256));
  flags.add(kRankModes, "-n,--nproc", options.nproc, "ranks to start")
      ->default_str("one for each micro-batch")
      ->check(command_line::range(1, 256));
  flags
      .add("--device", options.device,
           "cpu, cuda or cuda:N. With cuda, mode dp uses cuda:0, cuda:1, ..., and each rank of ddp one of its host's "
           "GPUs; several share a GPU if there are fewer GPUs")
      ->check(check_device);
  flags
      .add(kRankModes, "--backend", options.backend,
           "shm: shared memory; gloo: TCP; mpi: MPI, mpirun starts the ranks; nccl: GPUs")
      ->check(CLI::IsMember({"shm", "gloo", "mpi", "nccl"}));
  flags
      .add(kRankModes, "--comm-hook", options.comm_hook,
           "compression of gradients. none: exact; fp16, bf16: half the bytes; powersgd: low-rank factors, after 10 "
           "steps")
      ->check(CLI::IsMember({"none", "fp16", "bf16", "powersgd"}));
  flags.add(kRankModes, "--timeout", options.timeout, "seconds that a rank waits for the others")
      ->check(command_line::range(0.001, 86400.0));
  flags.add({"dp", "compare"}, "--loss", options.loss, "outside: on the gathered outputs; replica: on each device")
      ->check(CLI::IsMember({"outside", "replica"}));
  if (options.gpt) return;  // clips gradients by a norm that the host reads: no graph
  flags.add({"single"}, "--cuda-graph", options.cuda_graph,
            "on a cuda device, capture one step as a CUDA graph and replay it");
}

void declare_gpt(Flags& flags, GptOptions& gpt) {
  const CLI::Validator at_least_one = command_line::range(std::int64_t{1}, std::int64_t{1'000'000});
  flags.group("Model");
  flags.add("--layers", gpt.layers, "number of transformer blocks")->check(at_least_one);
  flags.add("--heads", gpt.heads, "attention heads in each block; must divide --width")->check(at_least_one);
  flags.add("--width", gpt.width, "embedding dimension")->check(at_least_one);
  flags.add("--context", gpt.context, "context length in characters")->check(at_least_one);
  flags.add("--dropout", gpt.dropout, "probability of dropout")->check(command_line::range(0.0, 1.0));
  flags.add("--recompute", gpt.recompute,
            "activation checkpointing: recompute each block in backward; same bits, less memory");
  flags.add("--bf16", gpt.bf16,
            "autocast: products and attention in bf16, all else in f32; other bits, less memory, on CPUs not faster");
  flags.group("Generated text");
  flags
      .add("--generate", gpt.generate,
           "characters to generate after training; with --resume yes without training again")
      ->check(command_line::range(0, 1'000'000'000));
  flags
      .add("--temperature", gpt.temperature,
           "divides the logits: below 1 favours likely characters, above 1 varies the text")
      ->check(command_line::range(1e-6, 1e6));
  flags.add("--top-k", gpt.top_k, "sample only from the k most likely characters; 0: from all")
      ->check(command_line::range(0, 256));
}

void declare_training(Flags& flags, Options& options) {
  flags.group("Training");
  flags.add("--epochs", options.epochs, "passes over the training data")->check(command_line::range(1, 1'000'000'000));
  flags.add("--batch", options.batch, "samples per step")->check(command_line::range(1, 1'000'000'000));
  flags.add("--lr", options.lr, "learning rate");
  flags.add("--seed", options.seed, "seed of the initial weights and of the order of samples")
      ->check(command_line::range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  flags
      .add("--resume", options.resume,
           "auto: resume the same command if it was interrupted; yes: resume or fail, more epochs are allowed; "
           "no: start from the beginning")
      ->check(CLI::IsMember({"auto", "yes", "no"}));
  flags.add(options.data_flag, options.data, options.data_help)->type_name("PATH");
}

void declare_output(Flags& flags, Options& options) {
  flags.group("Output");
  flags.add("--report", options.report, "traces the run, and shows its last steps in this HTML file")
      ->type_name("FILE");
  flags.add("--out", options.out, "output folder")->default_str("runs/" + options.program)->type_name("FOLDER");
  flags.add({"single", "accumulate", "dp", "ddp"}, "--save", options.save, "checkpoint file")
      ->default_str("checkpoint.safetensors in --out")
      ->type_name("FILE");
  flags.add("--save-every", options.save_every, "epochs between two checkpoints; 0: when the last one is a second old")
      ->check(command_line::range(0, 1'000'000'000));
  flags.add("--trace", options.trace, "traces the run into this file, for chrome://tracing or ui.perfetto.dev")
      ->type_name("FILE");
  flags.add("--timeline", options.timeline, "traces the run into this file, for other tools")->group("");
  flags.add("--quiet", options.quiet, "no line for each epoch, no summary");
}

void declare_teaching(Flags& flags, Options& options) {
  flags.group("Teaching");
  flags.add("--explain", options.explain, "traces the run, and explains in words what happens in its last step");
  flags.add("--trace-kernels", options.trace_kernels, "adds the CPU's kernels to traces, which takes more time");
  flags
      .add(kRankModes, "--order", options.order,
           "order in which the ranks' gradients are added. canonical: always the same; arrival: order of arrival, so "
           "that bits vary from run to run; own-first: each rank adds its own gradient first, so that bits differ "
           "between ranks")
      ->check(CLI::IsMember({"canonical", "arrival", "own-first"}));
  flags
      .add(kRankModes, "--inject", options.inject,
           "injects a fault: kill:rank=1,step=17; stop:, drop:, corrupt: or mismatch: likewise, or "
           "delay:rank=1,step=17,ms=200. Ranks that a launcher restarts have no fault. A step that is never reached "
           "is an error")
      ->type_name("FAULT");
}

}  // namespace

Options parse(int argc, char** argv, Options options) {
  CLI::App app(options.about, options.program);
  Flags flags(app);
  if (options.gpt) declare_gpt(flags, *options.gpt);
  declare_modes(flags, options);
  declare_training(flags, options);
  declare_output(flags, options);
  declare_teaching(flags, options);
  command_line::complete(app);
  const char* const typed = std::getenv(kTypedCommand);  // if set, the parent process has checked the flags
  try {
    app.parse(argc, argv);
    const std::string reason = settle_mode(app, options);
    if (!typed) flags.check(options.mode, reason);
    if (!typed && is_rank()) check_rank(app, options);
    check_values(app, options);
  } catch (const CLI::ParseError& error) {
    std::exit(command_line::report(app, error));
  }
  if (options.out.empty()) options.out = "runs/" + options.program;
  if (options.save.empty()) options.save = options.out + "/checkpoint.safetensors";
  options.command = typed ? typed : typed_command(argc, argv);
  options.arguments.assign(argv + 1, argv + argc);
  return options;
}

}  // namespace samples
