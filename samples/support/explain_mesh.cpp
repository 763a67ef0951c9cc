#include "support/explain_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "support/explain_pipeline.h"
#include "support/mesh.h"

namespace samples {
namespace {

namespace ls = lockstep;
namespace par = lockstep::parallel;
using par::ContextAttention;
using par::Phase;

// The numbers of the closed forms, with the names of docs/mesh.md.
struct Sizes {
  std::int64_t c = 1;                       // sequence blocks: ranks along cp
  std::int64_t b = 0;                       // the bytes of a rank's keys for one micro-batch
  std::int64_t g = 0;                       // the bytes of their gradients, which a ring sends in f32
  std::int64_t layers = 0, recomputed = 0;  // attentions of a micro-batch, and those that backward recomputes

  std::int64_t ring() const { return 2 * (c - 1) * b; }
  std::int64_t ring_gradients() const { return 2 * c * g; }
  std::int64_t ulysses() const { return 4 * (c - 1) * b / c; }
};

Sizes sizes_of(const Options& options, int ranks, std::int64_t texts) {
  const GptOptions& gpt = *options.gpt;
  const std::vector<par::MeshAxis> mesh = mesh_of(options, ranks);
  const std::int64_t c = ranks_along(mesh, "cp"),
                     elements = texts * gpt.context / c * gpt.width / ranks_along(mesh, "tp");
  return {.c = c,
          .b = elements * (gpt.bf16 ? 2 : 4),
          .g = elements * 4,
          .layers = gpt.layers,
          .recomputed = gpt.recompute ? gpt.layers : 0};
}

// The same for sums over tensor slices. A sum of n bytes over t ranks sends 2 (t - 1) n bytes, all ranks together.
struct SliceSizes {
  std::int64_t t = 1;           // ranks along tp
  std::int64_t activation = 0;  // bytes of one vector for each character of a rank's micro-batch, in f32
  std::int64_t loss = 0;        // bytes of three numbers for each of these characters
  std::int64_t layers = 0, recomputed = 0;

  std::int64_t forward() const { return (1 + 2 * layers + 2 * recomputed) * activation + loss; }
  std::int64_t gradients() const { return (1 + 2 * layers) * activation; }
};

SliceSizes slice_sizes_of(const Options& options, int ranks, std::int64_t texts) {
  const GptOptions& gpt = *options.gpt;
  const std::vector<par::MeshAxis> mesh = mesh_of(options, ranks);
  const std::int64_t characters = texts * gpt.context / ranks_along(mesh, "cp");
  return {.t = ranks_along(mesh, "tp"),
          .activation = characters * gpt.width * 4,
          .loss = characters * 3 * 4,
          .layers = gpt.layers,
          .recomputed = gpt.recompute ? gpt.layers : 0};
}

std::string counted(std::int64_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : noun == std::string("micro-batch") ? "es" : "s");
}

// "micro-batches 4 to 7"
std::string numbered(const char* one, const char* several, std::int64_t first, std::int64_t count) {
  if (count == 1) return fmt::format("{} {}", one, first);
  return fmt::format("{} {} {} {}", several, first, count == 2 ? "and" : "to", first + count - 1);
}

// The ranks that have all layers together with others along pp.
std::int64_t ranks_of_stage(const Options& options, int ranks) {
  return ranks / ranks_along(mesh_of(options, ranks), "pp");
}

std::int64_t micro_batches_of_rank(const Options& options, int ranks) {
  return options.micro_batches / data_ranks(options, ranks);
}

// "2 layers and 4 micro-batches on each of 4 ranks"
std::string step_sizes(const Options& options, int ranks) {
  const std::string layers = counted(options.gpt->layers, "layer"),
                    micro_batches = counted(micro_batches_of_rank(options, ranks), "micro-batch");
  const std::int64_t of_stage = ranks_of_stage(options, ranks);
  if (of_stage == ranks) return fmt::format("{} and {} on each of {} ranks", layers, micro_batches, ranks);
  return fmt::format("{} in {} groups of {}, and {} on each rank", layers, ranks / of_stage, counted(of_stage, "rank"),
                     micro_batches);
}

// The positions that the rank with coordinate `i` of `c` along cp has.
std::string positions(const Options& options, std::int64_t i, std::int64_t c) {
  if (c == 1) return "whole texts";
  const bool is_zigzag = attention_of(options) == ContextAttention::kRingZigzag;
  const std::int64_t size = options.gpt->context / (is_zigzag ? 2 * c : c);
  const auto part = [&](std::int64_t at) {
    return size == 1 ? fmt::format("{}", at) : fmt::format("{} to {}", at * size, (at + 1) * size - 1);
  };
  if (!is_zigzag) return fmt::format("characters {} of each text (sequence block {} of {})", part(i), i, c);
  const std::int64_t late = 2 * c - 1 - i;
  return fmt::format("characters {} and {} of each text (half blocks {} and {} of {})", part(i), part(late), i, late,
                     2 * c);
}

std::string owners(const Options& options, int ranks, const std::vector<par::MeshAxis>& mesh,
                   const std::string& data_axis) {
  const std::int64_t count = micro_batches_of_rank(options, ranks), c = ranks_along(mesh, "cp"),
                     slices = tensor_slices(options, ranks), own = slices / ranks_along(mesh, "tp");
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t first = coordinate(mesh, data_axis, rank) * count;
    text += fmt::format("rank {}: {} of {}; {}", rank, numbered("micro-batch", "micro-batches", first, count),
                        options.micro_batches, positions(options, coordinate(mesh, "cp", rank), c));
    if (slices > 1)
      text += fmt::format("; {} of {}",
                          numbered("tensor slice", "tensor slices", coordinate(mesh, "tp", rank) * own, own), slices);
    if (ranks_along(mesh, "pp") > 1) text += "; " + stages_of_rank(options, ranks, coordinate(mesh, "pp", rank));
    text += "\n";
  }
  return text;
}

std::string ring_text(const Sizes& s) {
  const std::string again =
      s.recomputed > 0 ? fmt::format("  backward  the same, since it recomputes forward: {} bytes\n", s.ring()) : "";
  return fmt::format(
      "  forward   keys and values, C - 1 times to the next rank along cp: 2 (C - 1) B = {0} bytes\n"
      "{1}"
      "  backward  keys and values once more: 2 (C - 1) B = {0} bytes\n"
      "            their gradients, C times, until each is back on the rank of its keys: 2 C G = {2} bytes\n",
      s.ring(), again, s.ring_gradients());
}

std::string ulysses_text(const Sizes& s) {
  const std::string again =
      s.recomputed > 0 ? fmt::format("  backward  the same, since it recomputes forward: {} bytes\n", s.ulysses()) : "";
  return fmt::format(
      "  forward   all-to-alls exchange sequence blocks for heads, and back: 4 (C - 1)/C B = {0} bytes\n"
      "{1}"
      "  backward  all-to-alls exchange the gradients likewise: 4 (C - 1)/C B = {0} bytes\n",
      s.ulysses(), again);
}

// Whether a collective is a sum over tensor slices.
bool is_over_slices(const ls::TraceEvent& event) {
  return std::ranges::any_of(std::initializer_list<std::string_view>{"tensor exit", "tensor entry", "embedding",
                                                                     "largest logit", "of exponentials"},
                             [&](std::string_view name) { return std::string_view(event.name).ends_with(name); });
}

// The bytes that a lane's rank sent in a phase of the step, for sums over tensor slices or for everything else.
std::int64_t sent(const report::Lane& lane, Phase phase, bool over_slices = false) {
  std::int64_t bytes = 0;
  for (const report::LaneEvent& each : lane.events) {
    const ls::TraceEvent& event = each.event;
    if (event.kind == ls::TraceKind::kCollective && event.labels.phase == static_cast<int>(phase) &&
        is_over_slices(event) == over_slices && !is_between_stages(event))
      bytes += event.labels.bytes;
  }
  return bytes;
}

// The bytes that a lane's rank sent to sum gradients of parameters.
std::int64_t sent_for_gradients(const report::Lane& lane) {
  std::int64_t bytes = 0;
  for (const report::LaneEvent& each : lane.events) {
    const ls::TraceEvent& event = each.event;
    const bool is_sum = event.name == "all_reduce" || event.name.starts_with("reduce_scatter");
    if (event.kind == ls::TraceKind::kCollective && event.labels.phase == static_cast<int>(Phase::kGradients) && is_sum)
      bytes += event.labels.bytes;
  }
  return bytes;
}

std::int64_t sent(const report::StepView& step, Phase phase, bool over_slices = false) {
  std::int64_t bytes = 0;
  for (const report::Lane& lane : step.lanes) bytes += sent(lane, phase, over_slices);
  return bytes;
}

std::string attention_text(const Options& options, int ranks, std::int64_t texts, const report::StepView& step) {
  const Sizes s = sizes_of(options, ranks, texts);
  const bool is_ulysses = attention_of(options) == ContextAttention::kUlysses;
  const AttentionBytes all = attention_bytes(options, ranks, texts);
  const std::string numbers =
      is_ulysses
          ? fmt::format("B = {} bytes of\nqueries, and as many of keys, of values and of results", s.b)
          : fmt::format("B = {} bytes of\nkeys, and as many of values; G = {} bytes of gradients of keys, in f32", s.b,
                        s.g);
  const std::string what = is_ulysses ? "queries, keys, values and results" : "keys and values";
  return fmt::format(
             "Before forward, the ranks along cp compare their texts (all_gather split_sequence). In a layer's\n"
             "attention, a rank sends for each micro-batch of {} (C = {} sequence blocks; {}):\n",
             counted(texts, "text"), s.c, numbers) +
         (is_ulysses ? ulysses_text(s) : ring_text(s)) +
         fmt::format(
             "In this step, with {}, all ranks sent\n"
             "  {}: {} bytes, by the formulas {}\n"
             "  their gradients: {} bytes, by the formulas {}\n",
             step_sizes(options, ranks), what, sent(step, is_ulysses ? Phase::kActivations : Phase::kKeysValues),
             all.forward, sent(step, Phase::kActivationGradients), all.gradients);
}

std::string slices_text(const Options& options, int ranks, std::int64_t texts, const report::StepView& step) {
  const SliceSizes s = slice_sizes_of(options, ranks, texts);
  const SliceBytes all = slice_bytes(options, ranks, texts);
  const std::string again =
      s.recomputed > 0
          ? fmt::format("  backward  the sums of each layer once more, since it recomputes forward: {} bytes\n",
                        2 * s.recomputed * s.activation)
          : "";
  return fmt::format(
      "All ranks along tp compute the same texts. They sum over the tensor slices, for each micro-batch of {}\n"
      "(A = {} bytes: a vector of {} numbers for each character, in f32):\n"
      "  forward   the vectors of tokens, and in each layer the outputs of attention.proj and proj:\n"
      "            (1 + 2 layers) A = {} bytes\n"
      "            three numbers of the loss for each character: {} bytes\n"
      "{}"
      "  backward  the gradients of the inputs of head, and in each layer of attention.qkv and fc:\n"
      "            (1 + 2 layers) A = {} bytes\n"
      "Of each sum over t = {} ranks, a rank sends 2 (t - 1)/t of the bytes.\n"
      "In this step, with {}, all ranks sent\n"
      "  sums in forward: {} bytes, by the formulas {}\n"
      "  sums of gradients: {} bytes, by the formulas {}\n",
      counted(texts, "text"), s.activation, options.gpt->width, (1 + 2 * s.layers) * s.activation, s.loss, again,
      s.gradients(), s.t, step_sizes(options, ranks), sent(step, Phase::kActivations, true), all.forward,
      sent(step, Phase::kActivationGradients, true), all.gradients);
}

// How the ranks sum the gradients of the parameters. Ranks along tp are not among them.
std::string gradients_text(int ranks, bool has_others, bool is_sharded, const std::string& axes,
                           const report::StepView& step) {
  if (ranks == 1) return "";
  const std::string gathers =
      is_sharded ? "Forward and backward gather the parameters of each unit from the same ranks.\n" : "";
  return fmt::format(
             "In backward of the last micro-batch, {} sums the gradients of parameters over {}\n"
             "n = {} ranks, {}. Each rank sends {} of the bytes; in this step rank 0 sent {} bytes.\n",
             is_sharded ? "a reduce-scatter for each unit" : "an all-reduce for each bucket",
             has_others ? "groups of" : "all", ranks, axes, is_sharded ? "(n - 1)/n" : "2 (n - 1)/n",
             step.lanes.empty() ? 0 : sent_for_gradients(step.lanes[0])) +
         gathers;
}

}  // namespace

AttentionBytes attention_bytes(const Options& options, int ranks, std::int64_t texts) {
  const Sizes s = sizes_of(options, ranks, texts);
  if (s.c == 1) return {};
  const std::int64_t count = micro_batches_of_rank(options, ranks) * ranks_of_stage(options, ranks),
                     attentions = count * s.layers, recomputed = count * s.recomputed;
  if (attention_of(options) == ContextAttention::kUlysses)
    return {.forward = (attentions + recomputed) * s.ulysses(), .gradients = attentions * s.ulysses()};
  return {.forward = (2 * attentions + recomputed) * s.ring(), .gradients = attentions * s.ring_gradients()};
}

SliceBytes slice_bytes(const Options& options, int ranks, std::int64_t texts) {
  const SliceSizes s = slice_sizes_of(options, ranks, texts);
  const std::int64_t sums =
      2 * (s.t - 1) * (ranks_of_stage(options, ranks) / s.t) * micro_batches_of_rank(options, ranks);
  return {.forward = sums * s.forward(), .gradients = sums * s.gradients()};
}

std::string explain_mesh(const Options& options, int ranks, std::int64_t texts, const report::StepView& step) {
  const std::vector<par::MeshAxis> mesh = mesh_of(options, ranks);
  const bool has_fsdp = std::ranges::find(mesh, "fsdp", &par::MeshAxis::name) != mesh.end(),
             is_sharded = has_fsdp && ranks_along(mesh, "dp") == 1, has_blocks = ranks_along(mesh, "cp") > 1;
  const int slices = tensor_slices(options, ranks), t = ranks_along(mesh, "tp"), p = ranks_along(mesh, "pp");
  const std::string data_axis = is_sharded ? "fsdp" : "dp";
  const bool has_data_axis = ranks_along(mesh, data_axis) > 1;
  std::string text = fmt::format("Mesh of {} rank{}", ranks, ranks == 1 ? "" : "s");
  if (has_data_axis) text += fmt::format("; {} divides the micro-batches", data_axis);
  if (has_blocks) text += fmt::format("; cp divides each text ({})", options.attention);
  if (slices > 1)
    text += fmt::format("; {} ({} tensor slices)", t > 1 ? "tp divides the matrices" : "matrices are cut", slices);
  if (p > 1) text += fmt::format("; pp divides the layers ({})", schedule_name(options));
  text += "\n" + owners(options, ranks, mesh, data_axis);
  if (has_blocks) text += attention_text(options, ranks, texts, step);
  if (t > 1) text += slices_text(options, ranks, texts, step);
  if (p > 1) text += stages_text(options, ranks, texts, step);
  return text + gradients_text(ranks / t / p, t > 1 || p > 1, is_sharded,
                               has_blocks && has_data_axis ? fmt::format("along cp and {} together", data_axis)
                               : has_blocks                ? "along cp"
                                                           : "along " + data_axis,
                               step);
}

}  // namespace samples
