// lockstep-explain: collectives step by step, with every message and every byte; training on more devices, predicted.
//   lockstep-explain all_reduce --algorithm ring --ranks 4 --elements 12
//   lockstep-explain reduce_scatter --ranks 4
//   lockstep-explain memory --stage 3 --ranks 8 --parameters 124000000
//   lockstep-explain mesh pp=2,dp=2,tp=2
//   lockstep-explain ring_attention --ranks 4 --zigzag
//   lockstep-explain tensor --slices 4 --ranks 2
//   lockstep-explain schedule 1f1b --pp 4 --micro-batches 8
//   lockstep-explain plan --parameters 1.5e9 --ranks 16 --memory 40 --link NVLink
//   lockstep-explain scaling --model 784x512x10 --link 10GbE --ranks 1..1024
//   lockstep-explain report trace.json --out report.html
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/command_line.h"
#include "tools/explain.h"
#include "tools/explain_memory.h"
#include "tools/explain_mesh.h"
#include "tools/explain_plan.h"
#include "tools/explain_report.h"
#include "tools/explain_ring_attention.h"
#include "tools/explain_scaling.h"
#include "tools/explain_schedule.h"
#include "tools/explain_tensor.h"

namespace par = lockstep::parallel;

namespace {

constexpr int kDrawnRanks = 16, kDrawnForwards = 4096;  // more would be unreadable
constexpr const char* kLinks =
    "NVLink, PCIe4, 100GbE, 10GbE, or a file ./link.json: {\"latency_us\": 12, \"gigabytes_per_second\": 1.1}";

struct Arguments {
  CollectiveQuestion all_reduce, reduce_scatter = {.collective = par::Collective::kReduceScatter},
                                 all_gather = {.collective = par::Collective::kAllGather};
  MemoryQuestion memory;
  RingAttentionQuestion ring_attention;
  TensorQuestion tensor;
  ScheduleQuestion schedule;
  PlanQuestion plan;
  ScalingQuestion scaling;
  ReportQuestion report;
  bool zigzag = false;  // was given; the default of ring_attention
  std::string html, save_profile, mesh, csv;
};

// An option with one of these names as its value. (CLI::CheckedTransformer would print the enumerators, which are
// bytes, as characters.)
template <class T>
void add_choice(CLI::App& app, const std::string& name, T& value, std::map<std::string, T> choices,
                const std::string& text) {
  std::vector<std::string> names;
  std::string before;
  for (const auto& [each, meaning] : choices) {
    names.push_back(each);
    if (meaning == value) before = each;
  }
  app.add_option_function<std::string>(
         name, [&value, choices = std::move(choices)](const std::string& chosen) { value = choices.at(chosen); }, text)
      ->check(CLI::IsMember(std::move(names)))
      ->default_str(before);
}

void add_algorithm(CLI::App& app, par::Algorithm& algorithm, const std::string& text) {
  add_choice<par::Algorithm>(app, "--algorithm", algorithm,
                             {{"direct", par::Algorithm::kDirect},
                              {"ring", par::Algorithm::kRing},
                              {"tree", par::Algorithm::kTree},
                              {"halving_doubling", par::Algorithm::kHalvingDoubling},
                              {"doubling", par::Algorithm::kDoubling}},
                             text);
}

CLI::App& declare_all_reduce(CLI::App& app, Arguments& arguments) {
  CollectiveQuestion& question = arguments.all_reduce;
  CLI::App& all_reduce = *app.add_subcommand("all_reduce", "runs an all-reduce and prints every message");
  add_algorithm(all_reduce, question.algorithm, "algorithm of the all-reduce");
  all_reduce.add_option("--ranks", question.ranks, "number of ranks, as threads")->check(command_line::range(1, 64));
  all_reduce.add_option("--elements", question.elements, "elements of each rank's tensor")
      ->check(command_line::range(0, 10'000'000));
  add_choice<par::ReduceOp>(all_reduce, "--op", question.op,
                            {{"sum", par::ReduceOp::kSum},
                             {"avg", par::ReduceOp::kAvg},
                             {"min", par::ReduceOp::kMin},
                             {"max", par::ReduceOp::kMax},
                             {"product", par::ReduceOp::kProduct}},
                            "how elements are combined");
  all_reduce.add_option("--html", arguments.html, "draw the steps as a page, into this file")->type_name("FILE");
  return all_reduce;
}

// reduce_scatter and all_gather, the halves of an all_reduce.
CLI::App& declare_half(CLI::App& app, Arguments& arguments, CollectiveQuestion& question, const std::string& text) {
  CLI::App& half = *app.add_subcommand(par::name(question.collective), text);
  add_choice<par::Algorithm>(half, "--algorithm", question.algorithm,
                             {{"direct", par::Algorithm::kDirect}, {"ring", par::Algorithm::kRing}},
                             "algorithm of the collective");
  half.add_option("--ranks", question.ranks, "number of ranks, as threads")->check(command_line::range(1, 64));
  half.add_option("--elements", question.elements, "elements of all parts together; a multiple of --ranks")
      ->check(command_line::range(0, 10'000'000));
  half.add_option("--html", arguments.html, "draw the steps as a page, into this file")->type_name("FILE");
  return half;
}

CLI::App& declare_memory(CLI::App& app, Arguments& arguments) {
  MemoryQuestion& question = arguments.memory;
  CLI::App& memory = *app.add_subcommand("memory", "draws the memory of a rank in each stage (ZeRO, FSDP)");
  memory
      .add_option("--stage", question.stage,
                  "0: DDP; 1: optimizer state sharded; 2: also gradients; 3: also parameters")
      ->default_str("all of them")
      ->check(command_line::range(0, 3));
  memory.add_option("--ranks", question.ranks, "number of ranks")->check(command_line::range(1, 100'000));
  memory.add_option("--parameters", question.parameters, "parameters of the model, f32")
      ->check(command_line::range(std::int64_t{1}, std::int64_t{10'000'000'000'000}));
  memory.add_option("--units", question.units, "units of the model, of equal size, besides the root unit")
      ->check(command_line::range(1, 100'000));
  memory.add_option("--micro-batches", question.micro_batches, "micro-batches per rank")
      ->check(command_line::range(1, 256));
  memory.add_option("--model", question.model, "gpt: the parameters and units of GPT-2 (124 million), instead")
      ->check(CLI::IsMember({"gpt"}));
  return memory;
}

CLI::App& declare_mesh(CLI::App& app, Arguments& arguments) {
  CLI::App& mesh = *app.add_subcommand("mesh", "shows which ranks each axis of a device mesh groups together");
  mesh.add_option("axes", arguments.mesh, "axes and their sizes: pp=2,dp=2,tp=2")->required();
  mesh.add_option("--html", arguments.html, "write a page with a figure for each axis to this file")->type_name("FILE");
  return mesh;
}

CLI::App& declare_ring_attention(CLI::App& app, Arguments& arguments) {
  RingAttentionQuestion& question = arguments.ring_attention;
  CLI::App& ring =
      *app.add_subcommand("ring_attention", "shows the steps of ring attention: parts, work and bytes of each rank");
  ring.add_option("--ranks", question.ranks, "number of ranks that share each sequence")
      ->check(command_line::range(2, kDrawnRanks));
  ring.add_flag("--zigzag", arguments.zigzag,
                "each rank has an early and a late half block of the sequence; the default");
  ring.add_flag("--plain", question.plain, "each rank has two half blocks that follow each other");
  ring.add_flag("--no-causal", question.no_causal, "attention without a causal mask");
  ring.add_option("--html", arguments.html, "draw pairs of half blocks and times as a page, into this file")
      ->type_name("FILE");
  return ring;
}

CLI::App& declare_tensor(CLI::App& app, Arguments& arguments) {
  TensorQuestion& question = arguments.tensor;
  CLI::App& tensor =
      *app.add_subcommand("tensor", "shows tensor parallelism: slices and bytes of each rank, order of sums");
  tensor.add_option("--slices", question.slices, "slices of each matrix; they determine the bits")
      ->check(command_line::range(1, kDrawnRanks));
  tensor.add_option("--ranks", question.ranks, "ranks that share the slices: --slices divided by 1, 2, 4 or 8")
      ->check(command_line::range(1, kDrawnRanks));
  const CLI::Validator size = command_line::range(std::int64_t{1}, std::int64_t{100'000});
  tensor.add_option("--width", question.width, "width of the block")->check(size);
  tensor.add_option("--heads", question.heads, "attention heads; a multiple of --slices")->check(size);
  tensor.add_option("--sequences", question.sequences, "sequences of a micro-batch")->check(size);
  tensor.add_option("--positions", question.positions, "positions of a sequence")
      ->check(command_line::range(std::int64_t{1}, std::int64_t{10'000'000}));
  tensor.add_option("--html", arguments.html, "draw matrices, messages and sums as a page, into this file")
      ->type_name("FILE");
  return tensor;
}

CLI::App& declare_schedule(CLI::App& app, Arguments& arguments) {
  ScheduleQuestion& question = arguments.schedule;
  CLI::App& schedule =
      *app.add_subcommand("schedule", "shows a pipeline schedule: what each rank computes, holds and waits for");
  schedule
      .add_option("schedule", question.schedule, "gpipe, 1f1b, interleaved, zb1p, or a CSV file of a table: ./mine.csv")
      ->required();
  schedule.add_option("--pp", question.ranks, "ranks of the pipeline")->check(command_line::range(1, 64));
  schedule.add_option("--micro-batches", question.micro_batches, "micro-batches of a step")
      ->check(command_line::range(1, 256));
  schedule.add_option("--chunks", question.chunks, "model chunks of each rank; above 1 for interleaved only")
      ->check(command_line::range(1, 16));
  schedule
      .add_option("--costs", question.costs,
                  "times of F, I and W: forward, gradients of inputs, gradients of parameters")
      ->type_name("F,I,W");
  schedule
      .add_option(
          "--profile", question.profile,
          "trace of a pipeline's steps, whose times replace --costs, and whose numbers are the defaults of --pp "
          "and --micro-batches")
      ->type_name("FILE");
  schedule.add_option("--csv", arguments.csv, "write the table to this file, as PyTorch does")->type_name("FILE");
  schedule.add_option("--html", arguments.html, "draw the time line as a page, into this file")->type_name("FILE");
  return schedule;
}

CLI::App& declare_plan(CLI::App& app, Arguments& arguments) {
  PlanQuestion& question = arguments.plan;
  CLI::App& plan = *app.add_subcommand("plan", "ranks the meshes on which a GPT can be trained by predicted step time");
  const CLI::Validator size = command_line::range(std::int64_t{1}, std::int64_t{1'000'000});
  plan.add_option("--layers", question.model.layers, "blocks of the GPT")
      ->check(command_line::range(std::int64_t{1}, std::int64_t{1000}));
  plan.add_option("--width", question.model.width, "width of the GPT; a multiple of --heads")->check(size);
  plan.add_option("--heads", question.model.heads, "attention heads")->check(size);
  plan.add_option("--context", question.model.context, "positions of a sequence")
      ->check(command_line::range(std::int64_t{1}, std::int64_t{10'000'000}));
  plan.add_option("--vocabulary", question.model.vocabulary, "tokens")->check(size);
  plan.add_option("--parameters", question.parameters,
                  "a GPT of about this size, with heads of 64 numbers and about as many layers as heads, instead of "
                  "--layers, --width and --heads")
      ->default_str("")
      ->check(command_line::range(1e3, 1e13));
  plan.add_option("--ranks", question.ranks, "number of ranks, all of which the mesh has")
      ->check(command_line::range(1, 512));
  plan.add_option("--memory", question.memory_gb, "GB of a rank's device")->check(command_line::range(1e-6, 1e6));
  plan.add_option("--micro-batches", question.micro_batches, "micro-batches of a step, of all ranks together")
      ->check(command_line::range(1, 1024));
  plan.add_option("--sequences", question.sequences, "sequences of a micro-batch")->check(size);
  plan.add_option("--link", question.link, kLinks);
  plan.add_option("--teraflops", question.teraflops, "floating-point operations of a rank, in 10^12 a second")
      ->check(command_line::range(1e-6, 1e6));
  plan.add_option("--profile", question.profile,
                  "file of scaling --save-profile with the times of one device and one micro-batch, for --teraflops")
      ->type_name("FILE");
  plan.add_option("--top", question.shown, "meshes to print")->check(command_line::range(1, 10'000));
  return plan;
}

CLI::App& declare_scaling(CLI::App& app, Arguments& arguments) {
  ScalingQuestion& question = arguments.scaling;
  CLI::App& scaling = *app.add_subcommand("scaling", "predicts the step time of DP and DDP on more devices");
  scaling.add_option("--model", question.model, "layers of an MLP to measure here");
  scaling.add_option("--batch", question.batch, "samples per device")->check(command_line::range(1, 1'000'000));
  scaling.add_option("--bucket-mb", question.bucket_mb, "DDP's bucket_cap_mb")->check(command_line::range(0.001, 1e6));
  scaling.add_option("--profile", question.profile, "file with the times of one device, instead of measuring")
      ->type_name("FILE");
  scaling.add_option("--save-profile", arguments.save_profile, "write the measured profile to this file")
      ->type_name("FILE");
  scaling.add_option("--link", question.link, kLinks);
  scaling.add_option("--ranks", question.ranks, "devices: 1..1024, or 1,2,6");
  add_algorithm(scaling, question.algorithm, "algorithm of DDP's all-reduces");
  scaling.add_flag("--no-overlap", question.no_overlap, "DDP reduces after backward");
  scaling.add_flag("--fixed-batch", question.fixed_batch, "divide one batch among the devices; else each has its own");
  scaling.add_option("--html", arguments.html, "draw the curves as a page, into this file")->type_name("FILE");
  return scaling;
}

CLI::App& declare_report(CLI::App& app, Arguments& arguments) {
  ReportQuestion& question = arguments.report;
  CLI::App& report = *app.add_subcommand("report", "draws traces of your own programs as a page");
  report.add_option("traces", question.traces, "files of write_chrome_trace; the page shows their runs side by side")
      ->required();
  report.add_option("--out", question.out, "the page (report.html)");
  report.add_option("--title", question.title, "heading of the page; by default the first file's name");
  return report;
}

void write_page(const std::string& path, const std::string& page) {
  if (path.empty()) return;
  write_file(path, page);
  fmt::print("page: {}\n", path);
}

int explain_collective(const CollectiveQuestion& question, const std::string& html) {
  if (!html.empty() && question.ranks > kDrawnRanks)
    throw CLI::ValidationError("--html", fmt::format("draws up to {} ranks, got {}; leave it out, or choose fewer",
                                                     kDrawnRanks, question.ranks));
  const SeenCollective seen = run_collective(question);
  fmt::print("{}", as_text(seen));
  if (!html.empty()) write_page(html, as_html(seen));
  return seen.is_right ? 0 : 1;
}

int explain_memory(const CLI::App& app, const MemoryQuestion& question) {
  for (const char* name : {"--parameters", "--units"}) {
    if (question.model.empty() || app.count(name) == 0) continue;
    throw CLI::ValidationError(name, "is not for --model, which has its own\nLeave one of the two out");
  }
  fmt::print("{}", memory_text(question));
  return 0;
}

int explain_mesh(const std::string& axes, const std::string& html) {
  const MeshAxes mesh = parse_mesh(axes);
  fmt::print("{}", mesh_text(mesh));
  if (!html.empty()) write_page(html, mesh_html(mesh));
  return 0;
}

int explain_ring_attention(const Arguments& arguments) {
  if (arguments.zigzag && arguments.ring_attention.plain)
    throw CLI::ValidationError("--plain", "is another kind of ring than --zigzag\nLeave one of the two out");
  const SeenRing ring = ring_of(arguments.ring_attention);
  fmt::print("{}", ring_text(ring));
  if (!arguments.html.empty()) write_page(arguments.html, ring_html(ring));
  return 0;
}

int explain_tensor(const Arguments& arguments) {
  const SeenTensor seen = tensor_of(arguments.tensor);
  fmt::print("{}", tensor_text(seen));
  if (!arguments.html.empty()) write_page(arguments.html, tensor_html(seen));
  return 0;
}

int explain_schedule(const CLI::App& app, Arguments& arguments) {
  for (const char* name : {"--pp", "--micro-batches", "--chunks"}) {
    if (!is_schedule_file(arguments.schedule) || app.count(name) == 0) continue;
    throw CLI::ValidationError(name, "is not for a file, which has its own\nLeave one of the two out");
  }
  if (app.count("--costs") > 0 && app.count("--profile") > 0)
    throw CLI::ValidationError("--costs", "is not for --profile, which has its own\nLeave one of the two out");
  arguments.schedule.has_ranks = app.count("--pp") > 0;
  arguments.schedule.has_micro_batches = app.count("--micro-batches") > 0;
  const SeenSchedule seen = schedule_of(arguments.schedule);
  if (const std::int64_t forwards = std::int64_t{seen.table.stages()} * seen.table.micro_batches();
      !arguments.html.empty() && forwards > kDrawnForwards)
    throw CLI::ValidationError("--html", fmt::format("draws up to {} forwards, got {}; leave it out, or choose fewer",
                                                     kDrawnForwards, forwards));
  fmt::print("{}", schedule_text(seen));
  if (!arguments.csv.empty()) {
    seen.table.save(arguments.csv);
    fmt::print("table: {}\n", arguments.csv);
  }
  if (!arguments.html.empty()) write_page(arguments.html, schedule_html(seen));
  return 0;
}

int explain_plan(const CLI::App& app, const PlanQuestion& question) {
  const std::pair<const char*, const char*> both[] = {{"--parameters", "--layers"},
                                                      {"--parameters", "--width"},
                                                      {"--parameters", "--heads"},
                                                      {"--profile", "--teraflops"}};
  for (const auto& [one, other] : both) {
    if (app.count(one) > 0 && app.count(other) > 0)
      throw CLI::ValidationError(other,
                                 fmt::format("is not for {}, which determines it\nLeave one of the two out", one));
  }
  fmt::print("{}", plan_text(plan_of(question)));
  return 0;
}

int explain_scaling(const CLI::App& app, const Arguments& arguments) {
  for (const char* name : {"--model", "--batch", "--bucket-mb", "--save-profile"}) {
    if (app.count("--profile") == 0 || app.count(name) == 0) continue;
    throw CLI::ValidationError(
        name, "is for a measurement, and --profile reads the times from a file\nLeave one of the two out");
  }
  const Scaling scaling = predict_scaling(arguments.scaling);
  fmt::print("{}", as_text(scaling));
  if (!arguments.save_profile.empty()) write_file(arguments.save_profile, profile_json(scaling.profile));
  if (!arguments.html.empty()) write_page(arguments.html, as_html(scaling));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Shows what happens inside collectives and data-parallel training", "lockstep-explain");
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  Arguments arguments;
  const CLI::App& all_reduce = declare_all_reduce(app, arguments);
  const CLI::App& reduce_scatter =
      declare_half(app, arguments, arguments.reduce_scatter, "runs a reduce-scatter and prints every message");
  const CLI::App& all_gather =
      declare_half(app, arguments, arguments.all_gather, "runs an all-gather and prints every message");
  const CLI::App& memory = declare_memory(app, arguments);
  const CLI::App& mesh = declare_mesh(app, arguments);
  const CLI::App& ring_attention = declare_ring_attention(app, arguments);
  const CLI::App& tensor = declare_tensor(app, arguments);
  const CLI::App& schedule = declare_schedule(app, arguments);
  const CLI::App& plan = declare_plan(app, arguments);
  const CLI::App& scaling = declare_scaling(app, arguments);
  declare_report(app, arguments);
  command_line::complete(app);
  try {
    app.parse(argc, argv);
    if (all_reduce.parsed()) return explain_collective(arguments.all_reduce, arguments.html);
    if (reduce_scatter.parsed()) return explain_collective(arguments.reduce_scatter, arguments.html);
    if (all_gather.parsed()) return explain_collective(arguments.all_gather, arguments.html);
    if (memory.parsed()) return explain_memory(memory, arguments.memory);
    if (mesh.parsed()) return explain_mesh(arguments.mesh, arguments.html);
    if (ring_attention.parsed()) return explain_ring_attention(arguments);
    if (tensor.parsed()) return explain_tensor(arguments);
    if (schedule.parsed()) return explain_schedule(schedule, arguments);
    if (plan.parsed()) return explain_plan(plan, arguments.plan);
    if (scaling.parsed()) return explain_scaling(scaling, arguments);
    fmt::print("{}", make_report(arguments.report));
    return 0;
  } catch (const CLI::ParseError& error) {
    return command_line::report(app, error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-explain: {}\n", error.what());
    return 1;
  }
}
