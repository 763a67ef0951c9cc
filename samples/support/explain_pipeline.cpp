#include "support/explain_pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "support/mesh.h"
#include "support/pipeline.h"
#include "tools/report/messages.h"

namespace samples {
namespace {

namespace ls = lockstep;
namespace par = lockstep::parallel;

// The modules of a stage: stages have equal numbers, larger ones first.
std::vector<std::string> modules_of(const Options& options, int stage, int stages) {
  std::vector<std::string> chain = {"embed"};
  for (std::int64_t i = 0; i < options.gpt->layers; ++i) chain.push_back(fmt::format("blocks.{}", i));
  chain.emplace_back("head");
  const std::int64_t count = std::ssize(chain) / stages, larger = std::ssize(chain) % stages,
                     first = stage * count + std::min<std::int64_t>(stage, larger);
  return {chain.begin() + first, chain.begin() + first + count + (stage < larger ? 1 : 0)};
}

// The bytes that all ranks sent from stage to stage in one phase of the step.
std::int64_t sent_between_stages(const report::StepView& step, par::Phase phase) {
  std::int64_t bytes = 0;
  for (const report::Lane& lane : step.lanes) {
    for (const report::LaneEvent& each : lane.events) {
      const bool is_sent = each.event.kind == ls::TraceKind::kCopy || each.event.kind == ls::TraceKind::kCollective;
      if (is_sent && is_between_stages(each.event) && each.event.labels.phase == static_cast<int>(phase))
        bytes += each.event.labels.bytes;
    }
  }
  return bytes;
}

std::string actions_of(const par::ScheduleTable& table, int rank) {
  std::vector<std::string> names;
  for (const par::ScheduleAction& each : table.actions(rank)) names.push_back(each.to_string());
  return fmt::format("{}", fmt::join(names, " "));
}

}  // namespace

std::string schedule_name(const Options& options) {
  return options.strategy == "model_parallel" ? "one micro-batch at a time" : options.schedule;
}

std::string stages_of_rank(const Options& options, int ranks, int coordinate) {
  const par::ScheduleTable table = *schedule_of(options, ranks);
  std::vector<std::string> texts;
  for (int stage = coordinate; stage < table.stages(); stage += table.ranks())
    texts.push_back(fmt::format("stage {} of {}: {}", stage, table.stages(),
                                fmt::join(modules_of(options, stage, table.stages()), ", ")));
  return fmt::format("{}", fmt::join(texts, "; "));
}

bool is_between_stages(const ls::TraceEvent& event) {
  const auto message = report::stage_message(event.name);
  return message && !report::is_receive(*message);
}

std::string stages_text(const Options& options, int ranks, std::int64_t texts, const report::StepView& step) {
  const GptOptions& gpt = *options.gpt;
  const std::vector<par::MeshAxis> mesh = mesh_of(options, ranks);
  const par::ScheduleTable table = *schedule_of(options, ranks);
  const par::Timeline timeline = par::simulate(table, {});
  const std::int64_t boundary = texts * gpt.context / ranks_along(mesh, "cp") * gpt.width * 4,
                     pipelines = ranks / table.ranks(),
                     all = boundary * (table.stages() - 1) * table.micro_batches() * pipelines;
  std::vector<int> held;
  for (const par::Timeline::Rank& rank : timeline.ranks) held.push_back(rank.in_flight);
  const bool is_split = std::ranges::any_of(
      table.actions(0), [](const par::ScheduleAction& each) { return each.kind == par::ActionKind::kBackwardInput; });
  std::string text = fmt::format(
      "Micro-batches pass the stages one after another. Each rank runs these actions, as 0F3: stage 0, forward,\n"
      "micro-batch 3. {}:\n",
      is_split ? "I and W are the two parts of a backward: the gradients of inputs, and those of parameters"
               : "B is backward");
  for (int r = 0; r < table.ranks(); ++r) text += fmt::format("  {} along pp: {}\n", r, actions_of(table, r));
  text += fmt::format(
      "If {} in all stages, a rank waits for {:.1f} % of the step.\n"
      "The ranks along pp hold at most {} activations, each of one stage and one micro-batch.\n"
      "A boundary of stages carries A = {} bytes for each micro-batch of {} text{}: a vector of {} numbers for each\n"
      "character, in f32; and as many of gradients, back. In this step, with {} boundar{} and {} micro-batch{} on each "
      "of\n"
      "{} pipeline{}, all ranks sent\n"
      "  outputs of stages: {} bytes, by the formula {}\n"
      "  their gradients: {} bytes, by the formula {}\n",
      is_split ? "F, I and W take equally long" : "a backward takes twice as long as a forward", 100 * timeline.idle,
      fmt::join(held, ", "), boundary, texts, texts == 1 ? "" : "s", gpt.width, table.stages() - 1,
      table.stages() == 2 ? "y" : "ies", table.micro_batches(), table.micro_batches() == 1 ? "" : "es", pipelines,
      pipelines == 1 ? "" : "s", sent_between_stages(step, par::Phase::kActivations), all,
      sent_between_stages(step, par::Phase::kActivationGradients), all);
  if (!gpt.untied)
    text +=
        "The ranks of embed and head share a weight: they send the sums of its gradients of a step to each other, and\n"
        "both add them.\n";
  return text;
}

}  // namespace samples
