#include "support/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/check_options.h"
#include "support/flags.h"
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

const Flags::Strategies kReplicated = {"ddp", "compare"},
                        kWithMesh = {"context", "tensor", "pipeline", "model_parallel", "parallel", "compare"},
                        kWithSchedule = {"pipeline", "parallel", "compare"};

// The strategies, in the order of the help; those of a mesh where the program has sequences.
Flags::Strategies all_of(Flags::Strategies strategies, const Options& options) {
  if (options.gpt) strategies.insert(strategies.end(), {"context", "tensor", "pipeline", "model_parallel", "parallel"});
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
  return text == "all" || !strategy_named(text).empty()
             ? ""
             : fmt::format("{} is not one of {} and all", text.substr(0, 40), names_of_strategies());
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
                                 "of the model's matrices; pipeline: each process has some of the layers, and "
                                 "micro-batches follow each other through them; model_parallel: the same, but the "
                                 "next micro-batch starts when the one before is done, so that one process works at "
                                 "a time; parallel: DDP or FSDP, with parts of texts along cp, slices along tp and "
                                 "layers along pp, as --mesh says; "
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
      ->default_str(options.gpt ? "one for each micro-batch; pipeline: 2" : "one for each micro-batch")
      ->check(command_line::range(1, 256));
  flags
      .add("--device", options.device,
           "cpu, cuda or cuda:N. With cuda, dp uses cuda:0, cuda:1, ..., and each rank one of its host's GPUs; "
           "several share a GPU if there are fewer GPUs. cpu:1, cpu:2, ... are virtual devices, from which "
           "zero2_offload and zero3_offload copy to cpu:0")
      ->check(check_device);
  flags
      .add(with_compare(all_of({"ddp", "zero*"}, options)), "--backend", options.backend,
           "shm: shared memory; gloo: TCP; mpi: MPI, mpirun starts the ranks; ucc: UCX's networks; nccl: GPUs")
      ->check(CLI::IsMember({"shm", "gloo", "mpi", "ucc", "nccl"}));
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
           "the strategies to compare, as accumulate,ddp,zero1,zero2,zero3, or all: their memory, bytes, idle time, "
           "speed and hash")
      ->delimiter(',')
      ->default_str("single,accumulate,dp,ddp")
      ->type_name("NAME,...")
      ->check(check_strategies);
  if (options.gpt) {
    flags
        .add(kWithMesh, "--mesh", options.mesh,
             "sizes of the axes, as dp=2,cp=2: dp or fsdp divide the micro-batches (with fsdp also the model), cp "
             "divides each text, tp the matrices, pp the layers. --context must be a multiple of cp, with zigzag of 2 "
             "cp")
        ->default_str("strategy context: cp=N, tensor: tp=N, pipeline: pp=N, of N ranks")
        ->type_name("AXES")
        ->check(check_mesh_text);
    flags
        .add(kWithSchedule, "--schedule", options.schedule,
             "of ranks along pp, which changes no bits. gpipe: all forwards, then all backwards; 1f1b: in turns, so "
             "that "
             "fewer activations are held; interleaved: the same with several parts of the model on each rank; zb1p: "
             "gradients of weights fill gaps. lockstep-explain schedule draws them")
        ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "zb1p"}));
    flags.add(kWithSchedule, "--chunks", options.chunks, "parts of the model on each rank along pp, of interleaved")
        ->default_str("interleaved: 2")
        ->type_name("N")
        ->check(command_line::range(1, 64));
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
  flags.add("--untied", gpt.untied,
            "the logits have a weight of their own, in place of that of the embedding; then a pipeline has the bits of "
            "accumulate");
  flags.add("--recompute", gpt.recompute,
            "activation checkpointing: recompute each block in backward; same bits, less memory");
  flags.add("--bf16", gpt.bf16,
            "autocast: products and attention in bf16, all else in f32; other bits, less memory, on CPUs not faster");
  flags
      .add("--peak-gflops", gpt.peak_gflops,
           "peak of one device or rank in GFLOP/s, from a data sheet or chapter 18's roofline: prints the share of it "
           "that "
           "training uses (MFU)")
      ->check(command_line::range(1e-3, 1e9));
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
    const std::string reason = choose_strategy(app, options);
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
