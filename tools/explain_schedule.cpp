#include "tools/explain_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tools/explain.h"
#include "tools/report/causes.h"
#include "tools/report/chrome_trace.h"

namespace par = lockstep::parallel;

namespace {

constexpr par::Schedule kAll[] = {par::Schedule::kGPipe, par::Schedule::k1F1B, par::Schedule::kInterleaved,
                                  par::Schedule::kZeroBubble};

std::optional<par::Schedule> find_schedule(const std::string& name) {
  for (const par::Schedule schedule : kAll) {
    if (name == par::name(schedule)) return schedule;
  }
  return std::nullopt;
}

par::ScheduleTable table_of(const ScheduleQuestion& q) {
  if (is_schedule_file(q)) return par::ScheduleTable::load(q.schedule);
  const auto schedule = find_schedule(q.schedule);
  if (!schedule)
    throw lockstep::InvalidArgument(
        fmt::format("schedule: there is no schedule \"{}\"; expected gpipe, 1f1b, interleaved, zb1p, or a CSV file "
                    "(./mine.csv)",
                    q.schedule.substr(0, 80)));
  return par::ScheduleTable::make(*schedule, q.ranks, q.micro_batches, q.chunks);
}

// "1,1.3,0.9"
par::ScheduleCosts parse_costs(const std::string& text) {
  constexpr double kMost = 1e6;
  double all[3] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto read = std::from_chars(at, end, all[i]);
    const bool is_last = i == 2, ends_well = is_last ? read.ptr == end : read.ptr != end && *read.ptr == ',';
    if (read.ec != std::errc() || !ends_well || !(all[i] > 0 && all[i] <= kMost))
      throw lockstep::InvalidArgument(
          fmt::format("schedule: costs \"{}\", expected three numbers above 0, of forward, gradients of inputs, and "
                      "gradients of parameters: --costs 1,1.3,0.9",
                      text.substr(0, 80)));
    at = read.ptr + 1;
  }
  return {.forward = all[0], .backward_input = all[1], .backward_weight = all[2]};
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

par::Timeline simulated(const par::ScheduleTable& table, const par::ScheduleCosts& costs,
                        const std::optional<report::PipelineProfile>& profile) {
  if (!profile) return par::simulate(table, costs);
  return par::simulate(table, profile->stages_for(table.stages()), profile->link);
}

std::optional<report::PipelineProfile> read_pipeline(const std::string& path) {
  if (path.empty()) return std::nullopt;
  auto profile = report::pipeline_profile(report::read_chrome_trace(path));
  if (!profile)
    throw lockstep::IoError(fmt::format(
        "{}: there is no complete step of a pipeline; trace a step of Pipeline or Parallel on all its ranks, "
        "and gather the traces (docs/traces.md)",
        path));
  return profile;
}

// The closed form of the step time, with its value.
std::string formula_text(const SeenSchedule& seen) {
  const auto schedule = find_schedule(seen.question.schedule);
  if (!schedule || seen.profile) return "";
  const double f = seen.costs.forward, i = seen.costs.backward_input, w = seen.costs.backward_weight;
  const int p = seen.table.ranks(), m = seen.table.micro_batches(), v = seen.table.chunks();
  const double work = m * (f + i + w);
  if (*schedule == par::Schedule::kZeroBubble) {
    if (m < p || w > f || w > i) return "";  // has no closed form
    return fmt::format(" = M (F + B) + (p - 1) (F + I - W) = {:g}", work + (p - 1) * (f + i - w));
  }
  if (*schedule == par::Schedule::kInterleaved)
    return fmt::format(" = M (F + B) + (p - 1) (F + B) / v = {:g}", work + (p - 1) * (f + i + w) / v);
  return fmt::format(" = M (F + B) + (p - 1) (F + B) = {:g}", work + (p - 1) * (f + i + w));
}

// The table with spaces in place of commas.
std::string rows_text(const SeenSchedule& seen) {
  std::string text, lines = seen.table.to_string();
  std::ranges::replace(lines, ',', ' ');
  std::size_t at = 0;
  for (int rank = 0; rank < seen.table.ranks(); ++rank) {
    const std::size_t end = lines.find('\n', at);
    text += fmt::format("rank {:<3} {}\n", rank, lines.substr(at, end - at));
    at = end + 1;
  }
  return text;
}

std::string ranks_text(const SeenSchedule& seen) {
  std::string text = "\nrank  computes  idle      holds at most\n";
  for (int rank = 0; rank < seen.table.ranks(); ++rank) {
    const par::Timeline::Rank& own = seen.timeline.ranks[static_cast<std::size_t>(rank)];
    text += fmt::format("{:>4}  {:<8}  {:<8}  {}\n", rank, seen.time(seen.work(rank)), percent(own.idle),
                        plural(own.in_flight, "activation"));
  }
  return text;
}

// What the other schedules would give with the same numbers.
std::string comparison_text(const SeenSchedule& seen) {
  const int p = seen.table.ranks(), m = seen.table.micro_batches();
  if (p == 1) return "";
  std::string text = fmt::format(
      "\nAll schedules for {} and {}; activations in units of all chunks of a rank\n"
      "schedule     chunks  step      idle      rank 0 holds\n",
      plural(p, "rank"), plural(m, "micro-batch"));
  for (const par::Schedule schedule : kAll) {
    const bool is_interleaved = schedule == par::Schedule::kInterleaved;
    if (is_interleaved && m % p != 0) continue;
    const int chunks = is_interleaved ? std::max(2, seen.table.chunks()) : 1;
    if (std::int64_t{p} * m * chunks > par::kMaxScheduleCells) continue;
    const par::Timeline timeline =
        simulated(par::ScheduleTable::make(schedule, p, m, chunks), seen.costs, seen.profile);
    text += fmt::format("{:<11}  {:<6}  {:<8}  {:<8}  {:g}\n", par::name(schedule), chunks, seen.time(timeline.seconds),
                        percent(timeline.idle), static_cast<double>(timeline.ranks[0].in_flight) / chunks);
  }
  return text;
}

// The measured times that the simulation has used.
std::string costs_text(const SeenSchedule& seen) {
  if (!seen.profile)
    return fmt::format("With F {:g}, I {:g}, W {:g} and B = I + W for a micro-batch in all chunks of a rank\n",
                       seen.costs.forward, seen.costs.backward_input, seen.costs.backward_weight);
  const report::PipelineProfile& profile = *seen.profile;
  std::string text =
      fmt::format("Times for a micro-batch from {}: medians over {} of {} and {}\n", seen.question.profile,
                  plural(std::ssize(profile.steps), "step"), plural(profile.table.ranks(), "rank"),
                  plural(profile.table.micro_batches(), "micro-batch"));
  text += profile.is_split ? "stage  F         I         W\n" : "stage  F         B\n";
  for (std::size_t stage = 0; stage < profile.stages.size(); ++stage) {
    const auto& [forward, input, weight] = profile.stages[stage];
    text += profile.is_split ? fmt::format("{:>5}  {:<8}  {:<8}  {}\n", stage, seen.time(forward), seen.time(input),
                                           seen.time(weight))
                             : fmt::format("{:>5}  {:<8}  {}\n", stage, seen.time(forward), seen.time(input + weight));
  }
  if (!profile.is_split) text += "The trace does not tell I and W apart: each is taken as half of B.\n";
  return text + (profile.table.ranks() > 1
                     ? fmt::format("A message arrives {} after its send.\n\n", seen.time(profile.link.latency))
                     : "\n");
}

// The measured step next to the predicted one.
std::string measured_text(const SeenSchedule& seen) {
  if (!seen.profile) return "";
  if (!seen.is_measured()) return "measured    the trace has another schedule\n";
  const report::PipelineStepTimes& step = seen.profile->median_step();
  const auto measured = static_cast<double>(step.end - step.begin);
  return fmt::format("measured    {}, idle {}; the prediction is {:+.1f} % off\n", seen.time(measured),
                     percent(step.idle()), 100 * (seen.timeline.seconds / measured - 1));
}

}  // namespace

double SeenSchedule::work(int rank) const {
  double sum = 0;
  for (const par::Timeline::Timed& each : timeline.ranks[static_cast<std::size_t>(rank)].actions)
    sum += each.end - each.begin;
  return sum;
}

double SeenSchedule::work() const {
  double sum = 0;
  for (int rank = 0; rank < table.ranks(); ++rank) sum += work(rank);
  return sum / table.ranks();
}

bool SeenSchedule::is_measured() const {
  if (!profile || profile->table.ranks() != table.ranks()) return false;
  for (int rank = 0; rank < table.ranks(); ++rank) {
    std::vector<par::ScheduleAction> actions = table.actions(rank);
    std::erase_if(actions, [](const par::ScheduleAction& action) { return !par::is_computing(action.kind); });
    if (actions != profile->table.actions(rank)) return false;
  }
  return true;
}

std::string SeenSchedule::time(double time) const {
  return profile ? report::time_text(std::llround(time)) : fmt::format("{:g}", time);
}

bool is_schedule_file(const ScheduleQuestion& question) {
  return question.schedule.find_first_of("./") != std::string::npos;
}

SeenSchedule schedule_of(const ScheduleQuestion& question) {
  std::optional<report::PipelineProfile> profile = read_pipeline(question.profile);
  ScheduleQuestion own = question;
  if (profile && !own.has_ranks) own.ranks = profile->table.ranks();
  if (profile && !own.has_micro_batches) own.micro_batches = profile->table.micro_batches();
  par::ScheduleTable table = table_of(own);
  const par::ScheduleCosts costs = parse_costs(own.costs);
  par::Timeline timeline = simulated(table, costs, profile);
  return {std::move(own), std::move(table), costs, std::move(profile), std::move(timeline)};
}

std::string schedule_title(const SeenSchedule& seen) {
  return fmt::format("schedule {}: {}, {}, {} on each rank", seen.question.schedule, plural(seen.table.ranks(), "rank"),
                     plural(seen.table.micro_batches(), "micro-batch"), plural(seen.table.chunks(), "chunk"));
}

std::string schedule_text(const SeenSchedule& seen) {
  const int boundaries = seen.table.stages() - 1;
  std::string messages = "There are no messages: one rank has all stages.";
  if (seen.table.ranks() > 1)
    messages = fmt::format(
        "{} between stages, each with {} messages: the outputs of each micro-batch, and their gradients.",
        boundaries == 1 ? "1 boundary" : fmt::format("{} boundaries", boundaries), seen.timeline.messages[0]);
  const std::string rows = rows_text(seen);
  const bool has_messages = rows.find('_') != std::string::npos;
  return fmt::format(
             "{}\n0F3: stage 0, forward, micro-batch 3. B is backward: I, the gradients of inputs, and W, those of\n"
             "parameters.{}\n\n{}\n"
             "{}step        {}{}\n{}idle        {} of the step, {} of the work\n{}",
             schedule_title(seen), has_messages ? "" : " A column is a time step if each action takes one.", rows,
             costs_text(seen), seen.time(seen.timeline.seconds), formula_text(seen), measured_text(seen),
             percent(seen.timeline.idle), percent(seen.timeline.seconds / seen.work() - 1), ranks_text(seen)) +
         messages + "\n" + comparison_text(seen);
}
