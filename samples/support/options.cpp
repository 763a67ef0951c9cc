#include "support/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "support/mesh.h"
#include "support/ranks.h"
#include "support/strategy.h"
#include "support/timeline.h"
#include "tools/command_line.h"
#include "tools/mesh_axes.h"

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

// Declares the flags and the strategies in which each has an effect. A flag with another strategy is an error, so that
// none is silently ignored.
class Flags {
 public:
  using Strategies = std::vector<std::string>;
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
  // Declares a flag for these strategies only; the help lists them. "zero*" stands for all of ShardedDataParallel.
  template <class T>
  CLI::Option* add(const Strategies& strategies, const std::string& name, T& value, const std::string& text) {
    const std::string where =
        fmt::format("({} {}) ", strategies.size() == 1 ? "strategy" : "strategies", listed(strategies));
    return limits_.emplace_back(add(name, value, where + text), strategies).first;
  }
  // `reason` says why the strategy is this one: "" or ", as ...".
  void check(const std::string& strategy, const std::string& reason) const {
    const std::string wanted = sharded_of(strategy) ? "zero*" : strategy;
    for (const auto& [option, strategies] : limits_) {
      if (option->count() == 0 || std::ranges::find(strategies, wanted) != strategies.end()) continue;
      const std::string name = option->get_name();
      throw CLI::ValidationError(name, fmt::format("is for --strategy {} only, and the strategy is {}{}\n"
                                                   "Choose the strategy with --strategy, or leave {} out",
                                                   listed(strategies), strategy, reason, name));
    }
  }

 private:
  static std::string listed(const Strategies& strategies) { return fmt::format("{}", fmt::join(strategies, ", ")); }
  CLI::App& app_;
  std::vector<std::pair<CLI::Option*, Strategies>> limits_;
};

void refuse_if(bool is_wrong, const char* flag, const std::string& text) {
  if (is_wrong) throw CLI::ValidationError(flag, text);
}

// Chooses the strategy if none is given. Returns the reason for the choice, for Flags::check.
std::string settle_strategy(const CLI::App& app, Options& options) {
  if (options.nproc == 0)
    options.nproc = options.mesh.empty() ? options.micro_batches : ranks_of(parse_mesh(options.mesh));
  if (options.strategy == "compare") return "";
  if (!options.strategy.empty()) {
    options.strategy = strategy_named(options.strategy);
    return "";
  }
  if (!options.mesh.empty()) {
    options.strategy = "parallel";
    return ", as there is a --mesh";
  }
  options.strategy = is_rank() || app.count("--nproc") > 0 ? "ddp" : "single";
  return is_rank()                   ? ", as this is a rank of a launcher"
         : options.strategy == "ddp" ? ""
                                     : ", as no --strategy is given";
}

void check_mesh(const CLI::App& app, const Options& options) {
  const auto is_chosen = [&](const char* name) {
    return options.strategy == name || std::ranges::find(options.compared, name) != options.compared.end();
  };
  const bool has_context = is_chosen("context"), has_tensor = is_chosen("tensor"),
             has_any = has_context || has_tensor || is_chosen("parallel");
  refuse_if(has_any && !options.gpt, "--strategy", "context, tensor and parallel are for the model of char_gpt");
  refuse_if(is_chosen("parallel") && options.mesh.empty(), "--strategy",
            "parallel needs a mesh of ranks; add --mesh, for example --mesh dp=2,cp=2");
  if (options.mesh.empty()) return;
  const MeshAxes mesh = parse_mesh(options.mesh);
  refuse_if(
      app.count("--nproc") > 0 && options.nproc != ranks_of(mesh), "--nproc",
      fmt::format("{} ranks, but --mesh {} has {}; leave --nproc out", options.nproc, options.mesh, ranks_of(mesh)));
  refuse_if(has_context && ranks_along(mesh, "cp") == 1, "--mesh",
            options.mesh + " has no axis cp with several ranks, which --strategy context needs, as cp=2");
  refuse_if(has_tensor && ranks_along(mesh, "tp") == 1, "--mesh",
            options.mesh + " has no axis tp with several ranks, which --strategy tensor needs, as tp=2");
}

// Rejects flags whose values exclude each other.
void check_values(const CLI::App& app, const Options& options) {
  const bool compares = options.strategy == "compare", on_gpu = is_gpu(options.device);
  refuse_if(compares && options.device != "cpu", "--device",
            options.device + " is not for --strategy compare, which compares bits on the CPU; leave --device out");
  refuse_if(options.backend == "nccl" && (!on_gpu || compares), "--backend",
            "nccl is for --strategy ddp or zero* with --device cuda");
  refuse_if(app.count("--order") > 0 && options.backend == "nccl", "--order",
            "has no effect on --backend nccl, which chooses the order itself; leave --order out");
  refuse_if(options.order != "canonical" && options.backend != "shm", "--order",
            options.order + " is for --backend shm, and the backend is " + options.backend);
  refuse_if(compares && options.order != "canonical", "--order",
            options.order + " is not for --strategy compare, which requires the same bits; use --strategy ddp");
  refuse_if(compares && options.comm_hook != "none", "--comm-hook",
            options.comm_hook + " is not for --strategy compare, which requires the same bits; use --strategy ddp");
  refuse_if(options.cuda_graph && !on_gpu, "--cuda-graph",
            "has an effect only on a cuda device, and the device is cpu; use --device cuda");
  refuse_if(sharded_of(options.strategy) && options.inject.starts_with("corrupt"), "--inject",
            "corrupt is for --strategy ddp: " + options.strategy + " has no copies of parameters that could differ");
  check_mesh(app, options);
  refuse_if(options.trace_kernels && !is_traced(options), "--trace-kernels",
            "adds kernels to a trace, and no trace is requested; add --trace, --report or --explain");
}

// Rejects flags that a rank of a launcher must not set: the launcher determines their values.
void check_rank(const CLI::App& app, const Options& options) {
  refuse_if(!has_ranks(options.strategy), "--strategy",
            options.strategy + " is for a program started once, and this is a rank of a launcher; use --strategy ddp");
  refuse_if(app.count("--nproc") > 0, "--nproc",
            "has no effect on a rank of a launcher, which sets the number of ranks; leave --nproc out");
}

// --- the flags ----------------------------------------------------------------------------------------------------------

const Flags::Strategies kReplicated = {"ddp", "compare"}, kWithMesh = {"context", "tensor", "parallel", "compare"};

// The strategies, in the order of the help; those of a mesh where the program has sequences.
Flags::Strategies all_of(Flags::Strategies strategies, const Options& options) {
  if (options.gpt) strategies.insert(strategies.end(), {"context", "tensor", "parallel"});
  return strategies;
}
Flags::Strategies with_compare(Flags::Strategies strategies) {
  strategies.emplace_back("compare");
  return strategies;
}

std::string check_mesh_text(const std::string& text) {
  try {
    parse_mesh(text);
    return "";
  } catch (const lockstep::Error& error) {
    return error.what();
  }
}

std::string check_device(const std::string& text) {
  const std::size_t number = text.find(':') + 1;  // 0: none
  const std::string kind = text.substr(0, number == 0 ? text.size() : number - 1);
  const bool has_number = number > 0 && text.size() > number && text.size() < number + 3 &&
                          text.find_first_not_of("0123456789", number) == std::string::npos;
  const bool is_known = (kind == "cpu" || kind == "cuda") && (number == 0 || has_number);
  return is_known ? "" : text + " is not one of cpu, cpu:N, cuda and cuda:N";
}

std::string check_strategy(const std::string& text) {
  return text == "compare" || !strategy_named(text).empty()
             ? ""
             : fmt::format("{} is not one of {} and compare", text.substr(0, 40), names_of_strategies());
}

// A list of strategies, of which each can be compared.
std::string check_strategies(const std::string& text) {
  return strategy_named(text).empty() ? fmt::format("{} is not one of {}", text.substr(0, 40), names_of_strategies())
                                      : "";
}

void declare_strategies(Flags& flags, Options& options) {
  flags.group("Strategy");
  flags
      .add("--strategy,--mode", options.strategy,
           "single: one device; accumulate: the micro-batches of a step one after another; dp: DataParallel, one "
           "device per micro-batch; ddp: DistributedDataParallel, in several processes; zero1, zero2, zero3 or fsdp: "
           "ShardedDataParallel, which distributes over the processes the optimizer's state, also gradients, also "
           "parameters; zero2_offload, zero3_offload: with the optimizer on the host; " +
               std::string(options.gpt
                               ? "context: each process has a part of every text; tensor: each process has slices "
                                 "of the model's matrices; parallel: DDP or FSDP, with parts of texts along cp "
                                 "and slices along tp, as --mesh says; "
                               : "") +
               "compare: several of them. Also names of Lightning and DeepSpeed, as deepspeed_stage_2")
      ->default_str("single; with --nproc: ddp")
      ->type_name("NAME")
      ->check(check_strategy);
  flags
      .add(with_compare(all_of({"accumulate", "dp", "ddp", "zero*"}, options)), "--micro-batches",
           options.micro_batches, "micro-batches per step, over all devices and ranks; the bits depend on this number")
      ->check(command_line::range(1, 256));
  flags.add(with_compare(all_of({"ddp", "zero*"}, options)), "-n,--nproc", options.nproc, "ranks to start")
      ->default_str("one for each micro-batch")
      ->check(command_line::range(1, 256));
  flags
      .add("--device", options.device,
           "cpu, cuda or cuda:N. With cuda, dp uses cuda:0, cuda:1, ..., and each rank one of its host's GPUs; "
           "several share a GPU if there are fewer GPUs. cpu:1, cpu:2, ... are virtual devices, from which "
           "zero2_offload and zero3_offload copy to cpu:0")
      ->check(check_device);
  flags
      .add(with_compare(all_of({"ddp", "zero*"}, options)), "--backend", options.backend,
           "shm: shared memory; gloo: TCP; mpi: MPI, mpirun starts the ranks; nccl: GPUs")
      ->check(CLI::IsMember({"shm", "gloo", "mpi", "nccl"}));
  flags
      .add(kReplicated, "--comm-hook", options.comm_hook,
           "compression of gradients. none: exact; fp16, bf16: half the bytes; powersgd: low-rank factors, after 10 "
           "steps")
      ->check(CLI::IsMember({"none", "fp16", "bf16", "powersgd"}));
  flags
      .add(with_compare(all_of({"ddp", "zero*"}, options)), "--timeout", options.timeout,
           "seconds that a rank waits for the others")
      ->check(command_line::range(0.001, 86400.0));
  flags.add({"dp", "compare"}, "--loss", options.loss, "outside: on the gathered outputs; replica: on each device")
      ->check(CLI::IsMember({"outside", "replica"}));
  flags
      .add({"compare"}, "--strategies", options.compared,
           "the strategies to compare, as accumulate,ddp,zero1,zero2,zero3: their memory, bytes, speed and hash")
      ->delimiter(',')
      ->default_str("single,accumulate,dp,ddp")
      ->type_name("NAME,...")
      ->check(check_strategies);
  if (options.gpt) {
    flags
        .add(kWithMesh, "--mesh", options.mesh,
             "sizes of the axes, as dp=2,cp=2: dp or fsdp divide the micro-batches (with fsdp also the model), cp "
             "divides each text, tp the matrices. --context must be a multiple of cp, with zigzag of 2 cp")
        ->default_str("strategy context: cp=N, tensor: tp=N, of N ranks")
        ->type_name("AXES")
        ->check(check_mesh_text);
    flags
        .add({"tensor", "parallel", "compare"}, "--tensor-slices", options.tensor_slices,
             "slices of the matrices, which ranks along tp share: their number times 1, 2, 4, 8, .... It must divide "
             "--heads. The bits depend on it")
        ->default_str("one for each rank along tp")
        ->type_name("T")
        ->check(command_line::range(1, 256));
    flags
        .add({"context", "parallel", "compare"}, "--attention", options.attention,
             "of ranks along cp. zigzag, ring: they send keys round a ring; ulysses: an all-to-all exchanges parts of "
             "texts for heads, which cp must divide. The bits depend on it")
        ->check(CLI::IsMember({"zigzag", "ring", "ulysses"}));
  }
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
  CLI::Option* data = flags.add(options.data_flag, options.data, options.data_help)->type_name("PATH");
  if (!options.data_default.empty()) data->default_str(options.data_default);
}

void declare_output(Flags& flags, Options& options) {
  flags.group("Output");
  flags.add("--report", options.report, "traces the run, and shows its last steps in this HTML file")
      ->type_name("FILE");
  flags.add("--out", options.out, "output folder")->default_str("runs/" + options.program)->type_name("FOLDER");
  flags.add(all_of({"single", "accumulate", "dp", "ddp", "zero*"}, options), "--save", options.save, "checkpoint file")
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
      .add(kReplicated, "--order", options.order,
           "order in which the ranks' gradients are added. canonical: always the same; arrival: order of arrival, so "
           "that bits vary from run to run; own-first: each rank adds its own gradient first, so that bits differ "
           "between ranks")
      ->check(CLI::IsMember({"canonical", "arrival", "own-first"}));
  flags
      .add(with_compare(all_of({"ddp", "zero*"}, options)), "--inject", options.inject,
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
  declare_strategies(flags, options);
  declare_training(flags, options);
  declare_output(flags, options);
  declare_teaching(flags, options);
  command_line::complete(app);
  const char* const typed = std::getenv(kTypedCommand);  // if set, the parent process has checked the flags
  try {
    app.parse(argc, argv);
    const std::string reason = settle_strategy(app, options);
    if (!typed) flags.check(options.strategy, reason);
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
