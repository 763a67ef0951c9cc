#include "tools/report/answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>

#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tools/report/causes.h"
#include "tools/report/messages.h"
#include "tools/report/pipeline.h"

namespace report {
namespace {

using lockstep::TraceEvent;
using lockstep::TraceKind;

constexpr double kClear = 0.05;  // a smaller share of a step is noise
constexpr double kPart = 0.1;    // the share of a difference from which a part of it is listed
constexpr int kMoreDevices = 8;  // in the closed forms
constexpr std::size_t kWaitingLanes = 4;

double ratio(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) / static_cast<double>(std::max<std::int64_t>(b, 1));
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// A run with its costs.
struct Measured {
  const TracedRun* traced;
  StepCosts costs;

  const std::string& name() const { return traced->run.name; }
  const std::string& mode() const { return traced->run.mode; }
  bool has_ranks() const { return traced->run.has_ranks(); }
  const char* devices() const { return has_ranks() ? "ranks" : "devices"; }
  // The lane whose times are compared: "cpu:0", "the ranks (mean)".
  std::string lane() const { return has_ranks() ? "the ranks (mean)" : "cpu:0"; }
};

struct Part {
  std::int64_t ns;
  std::string text;
};

// The parts of a difference that are at least a tenth of `whole`, longest first.
std::string longest_parts(std::vector<Part> parts, std::int64_t whole) {
  std::erase_if(parts, [&](const Part& part) { return part.ns <= 0 || ratio(part.ns, whole) < kPart; });
  std::ranges::stable_sort(parts, std::ranges::greater(), &Part::ns);
  std::vector<std::string> texts;
  for (const Part& part : parts) texts.push_back(part.text);
  return fmt::format("{}", fmt::join(texts, "; "));
}

class Answers {
 public:
  explicit Answers(const std::vector<TracedRun>& runs) {
    for (const TracedRun& traced : runs)
      if (!traced.steps.empty()) runs_.push_back({&traced, costs_of(traced.run, median_step(traced.steps))});
  }

  std::vector<Answer> take() {
    const Measured *const ddp = find("ddp"), *const dp = find("dp");
    if (dp && ddp) compare(*dp, *ddp);
    for (const Measured& run : runs_)
      if (ddp && run.traced->run.is_sharded()) compare(*ddp, run);
    const Measured* const alone = find("single") ? find("single") : find("accumulate");
    for (const Measured& run : runs_)
      if (alone && run.costs.lanes > 1) explain_speedup(*alone, run);
    for (const Measured& run : runs_) {
      if (run.has_ranks() && run.costs.lanes > 1) explain_overlap(run);
    }
    for (const Measured& run : runs_)
      if (run.costs.lanes > 1) explain_waiting(run);
    for (const Measured& run : runs_) explain_pipeline(run);
    add_memory();
    extrapolate();
    return std::move(answers_);
  }

 private:
  const Measured* find(std::string_view mode) const {
    const auto run = std::ranges::find_if(runs_, [&](const Measured& each) { return each.mode() == mode; });
    return run == runs_.end() ? nullptr : &*run;
  }

  // Why one of two strategies on as many devices is faster.
  void compare(const Measured& a, const Measured& b) {
    const Measured &slow = a.costs.step >= b.costs.step ? a : b, &fast = &slow == &a ? b : a;
    const std::int64_t more = slow.costs.step - fast.costs.step;
    if (slow.costs.lanes != fast.costs.lanes || ratio(more, slow.costs.step) < kClear) return;
    const auto part = [&](std::int64_t StepCosts::*cost, const char* what) {
      const std::int64_t s = slow.costs.*cost, f = fast.costs.*cost;
      return Part{s - f, fmt::format("{} takes {} instead of {}", what, time_text(s), time_text(f))};
    };
    answers_.push_back(
        {fmt::format("Why is {} faster than {}?", fast.name(), slow.name()),
         fmt::format("A step takes {} instead of {}. The largest differences between {} of {} and {} of {}: {}.",
                     time_text(fast.costs.step), time_text(slow.costs.step), slow.lane(), slow.name(), fast.lane(),
                     fast.name(),
                     longest_parts(
                         {part(&StepCosts::model, "forward and backward"), part(&StepCosts::optimizer, "the optimizer"),
                          part(&StepCosts::communication, "exposed communication"),
                          part(&StepCosts::waiting, "waiting"), part(&StepCosts::other, "loading data and bookkeeping"),
                          part(&StepCosts::apart, "the difference of the ranks' begins and ends")},
                         more))});
  }

  // Why n devices are not n times as fast as one.
  void explain_speedup(const Measured& alone, const Measured& run) {
    const StepCosts &one = alone.costs, &costs = run.costs;
    const std::int64_t n = costs.lanes, lost = costs.step - one.step / n;
    if (ratio(lost, costs.step) < kClear) return;
    const double speedup = ratio(one.step, costs.step);
    const bool is_whole = repeats_optimizer(one, run);
    const auto beyond = [&](std::int64_t cost, std::int64_t of_one) { return cost - of_one / n; };
    const std::vector<Part> parts = {
        {beyond(costs.optimizer, one.optimizer),
         is_whole ? fmt::format("{} because the optimizer's step is not divided ({}, {} in {})",
                                time_text(beyond(costs.optimizer, one.optimizer)), time_text(costs.optimizer),
                                time_text(one.optimizer), alone.name())
                  : fmt::format("{} in the optimizer's step", time_text(beyond(costs.optimizer, one.optimizer)))},
        {beyond(costs.model, one.model),
         fmt::format("{} in forward and backward", time_text(beyond(costs.model, one.model)))},
        {costs.communication, fmt::format("{} of exposed communication", time_text(costs.communication))},
        {costs.waiting, fmt::format("{} of waiting", time_text(costs.waiting))},
        {beyond(costs.other, one.other),
         fmt::format("{} of loading data and bookkeeping", time_text(beyond(costs.other, one.other)))},
        {costs.apart,
         fmt::format("{} in which the ranks begin or end the step at different times", time_text(costs.apart))}};
    answers_.push_back(
        {speedup >= 1
             ? fmt::format("Why is {} {:.2f} and not {} times as fast as {}?", run.name(), speedup, n, alone.name())
             : fmt::format("Why is {} slower than {}?", run.name(), alone.name()),
         fmt::format("On {} {} a step could take {}, 1/{} of {}'s; it takes {}. The {} more are, for {}, mainly: {}.{}",
                     n, run.devices(), time_text(one.step / n), n, alone.name(), time_text(costs.step), time_text(lost),
                     run.lane(), longest_parts(parts, lost), is_whole ? amdahl(one, run) : "")});
  }

  // Whether the optimizer's step takes about as long as on one device, and enough of that device's step to matter.
  static bool repeats_optimizer(const StepCosts& one, const Measured& run) {
    return (run.mode() == "dp" || run.mode() == "ddp") && ratio(one.optimizer, one.step) >= kPart &&
           ratio(run.costs.optimizer, one.optimizer) > 0.75;
  }

  std::string amdahl(const StepCosts& one, const Measured& run) const {
    const double serial = ratio(one.optimizer, one.step), n = run.costs.lanes;
    std::string text = fmt::format(
        " The optimizer is {} of a step on one device; if only the rest is divided, {} devices are at most {:.2f} "
        "times, "
        "and any number at most {:.1f} times as fast (Amdahl's law).",
        percent(serial), run.costs.lanes, 1 / (serial + (1 - serial) / n), 1 / serial);
    for (const Measured& other : runs_) {
      if (!other.traced->run.is_sharded() || other.costs.lanes != run.costs.lanes) continue;
      return text + fmt::format(" {} divides it: {} on each rank.", other.name(), time_text(other.costs.optimizer));
    }
    return text + " ZeRO stage 1 (zero1) divides the optimizer's step, too.";
  }

  void explain_overlap(const Measured& run) {
    lockstep::parallel::CommunicationOverlap sum;
    std::size_t buckets = 0;
    for (const StepView& step : run.traced->steps) {
      sum.seconds += step.overlap.seconds, sum.early_seconds += step.overlap.early_seconds;
      sum.bytes += step.overlap.bytes, sum.early_bytes += step.overlap.early_bytes;
    }
    for (const LaneEvent& each : median_step(run.traced->steps).lanes[0].events)
      buckets += each.event.kind == TraceKind::kBucketLaunched ? 1 : 0;
    const std::string exposed =
        fmt::format(" Exposed are {} of a step on each rank (mean).", time_text(run.costs.communication));
    const std::string question = fmt::format("What overlaps in {}?", run.name());
    if (sum.bytes == 0) return explain_flights(run, question, exposed);
    if (sum.early_bytes > 0)
      answers_.push_back(
          {question,
           fmt::format("{} of the communication's time, and {} of its bytes, overlap with backward: "
                       "buckets that are reduced before the last gradient is ready.{}",
                       percent(sum.early_seconds / sum.seconds), percent(ratio(sum.early_bytes, sum.bytes)), exposed)});
    else
      answers_.push_back(
          {question, (buckets == 1 ? "Nothing: there is one bucket, which is complete when the last gradient is ready."
                                   : "Nothing: no bucket is reduced before the last gradient is ready.") +
                         exposed});
  }

  // Collectives without buckets: the time in which one is in flight and the rank does not wait. Steps with messages between
  // two ranks, such as those of a pipeline, have no answer: the end of a message is not traced.
  void explain_flights(const Measured& run, const std::string& question, const std::string& exposed) {
    std::int64_t flight = 0, waited = 0;
    for (const Lane& lane : median_step(run.traced->steps).lanes) {
      std::int64_t done = lane.events.empty() ? 0 : lane.events.front().event.begin;
      for (const LaneEvent& each : lane.events) {
        const TraceEvent& event = each.event;
        if (is_message(event)) return;
        if (event.kind == TraceKind::kWait) waited += event.end - event.begin;
        if (event.kind != TraceKind::kCollective || event.end <= done) continue;
        flight += event.end - std::max(event.begin, done);
        done = event.end;
      }
    }
    if (flight == 0) return;
    const double share = std::max(0.0, 1 - ratio(waited, flight));
    if (share < kClear)
      answers_.push_back({question, "Nothing: the ranks wait while collectives are in flight." + exposed});
    else
      answers_.push_back(
          {question, fmt::format("For {} of the time in which a collective is in flight, the rank does not wait "
                                 "for it.{}",
                                 percent(share), exposed)});
  }

  // The lanes that wait for at least 5 % of the median step, and their longest cause.
  void explain_waiting(const Measured& run) {
    const StepView& step = median_step(run.traced->steps);
    const std::vector<Cause> causes = causes_of(run.traced->run, {step});
    std::vector<Part> parts;
    for (const Lane& lane : step.lanes) {
      std::int64_t sum = 0;
      const Cause* longest = nullptr;
      for (const Cause& cause : causes) {
        if (cause.lane != lane.name || !cause.is_waiting) continue;
        sum += cause.ns;
        if (!longest) longest = &cause;
      }
      if (!longest || ratio(sum, run.costs.step) < kClear) continue;
      parts.push_back({sum, fmt::format("{} waits {} of {} ({}), {} of them for {}", lane.name, time_text(sum),
                                        time_text(run.costs.step), percent(ratio(sum, run.costs.step)),
                                        longest->ns == sum ? "all" : time_text(longest->ns), longest->what)});
    }
    if (parts.empty()) return;
    std::ranges::stable_sort(parts, std::ranges::greater(), &Part::ns);
    if (parts.size() > kWaitingLanes) parts.resize(kWaitingLanes);
    answers_.push_back({fmt::format("Who waits in {}?", run.name()), longest_parts(parts, 0) + "."});
  }

  void explain_pipeline(const Measured& run) {
    const std::optional<PipelineProfile> profile = pipeline_profile(run.traced->run.traces);
    if (!profile) return;
    const double planned = lockstep::parallel::simulate(profile->table, profile->stages, profile->link).idle;
    answers_.push_back(
        {fmt::format("How long are the stages of {} idle?", run.name()),
         fmt::format("{} of the step of median length (mean of the ranks). With the same times of its actions the "
                     "schedule alone leaves {} (the bubble).",
                     percent(profile->median_step().idle()), percent(planned))});
  }

  // Memory of a rank against that of the strategy that keeps all of the model.
  void add_memory() {
    const Measured* whole = nullptr;
    for (const char* mode : {"ddp", "accumulate", "dp", "single"})
      if (!whole && find(mode) && find(mode)->traced->run.memory.is_known()) whole = find(mode);
    if (!whole) return;
    const ModelMemory& all = whole->traced->run.memory;
    for (const Measured& run : runs_) {
      const ModelMemory& own = run.traced->run.memory;
      if (&run == whole || !own.is_known() || own.total() == all.total()) continue;
      const auto part = [&](std::int64_t ModelMemory::*bytes, const char* what) {
        const std::int64_t difference = own.total() < all.total() ? all.*bytes - own.*bytes : own.*bytes - all.*bytes;
        return Part{difference, fmt::format("{} {} instead of {}", what, bytes_text(static_cast<double>(own.*bytes)),
                                            bytes_text(static_cast<double>(all.*bytes)))};
      };
      const bool is_less = own.total() < all.total();
      answers_.push_back(
          {fmt::format("How much memory does {} {}?", run.name(), is_less ? "save" : "need"),
           fmt::format(
               "A rank has {} of parameters, gradients, optimizer state and buffers of units: {} {} than {} ({}). {}.",
               bytes_text(static_cast<double>(own.total())),
               percent(is_less ? 1 - ratio(own.total(), all.total()) : ratio(own.total(), all.total()) - 1),
               is_less ? "less" : "more", whole->name(), bytes_text(static_cast<double>(all.total())),
               longest_parts(
                   {part(&ModelMemory::parameters, "Parameters"), part(&ModelMemory::gradients, "Gradients"),
                    part(&ModelMemory::optimizer, "Optimizer state"), part(&ModelMemory::units, "Buffers of units")},
                   std::abs(all.total() - own.total())))});
    }
  }

  // The bytes on more devices, of the strategies whose counters follow their formula on those of this run.
  void extrapolate() {
    std::vector<std::string> texts;
    double bytes = 0;
    for (const Measured& run : runs_) {
      const ByteFormula formula = formula_of(run.traced->run, run.costs.lanes);
      if (formula.kind == ByteFormula::Kind::kNone || run.costs.lanes >= kMoreDevices) continue;
      bytes = static_cast<double>(run.traced->run.gradient_bytes);
      const double now = formula.multiple(run.costs.lanes), then = formula.multiple(kMoreDevices);
      texts.push_back(fmt::format("{} of {} {} = {:.4g} P = {} (here {:.4g} P)",
                                  formula.kind == ByteFormula::Kind::kHub ? "cpu:0" : "a rank", run.name(),
                                  formula.text(), then, bytes_text(then * bytes), now));
    }
    if (texts.size() < 2) return;
    answers_.push_back(
        {fmt::format("What would change on {} devices?", kMoreDevices),
         fmt::format("The parameters and gradients that pass through the busiest end in a step, sent and received, "
                     "with the model's P = {}: {}.",
                     bytes_text(bytes), fmt::join(texts, "; "))});
  }

  std::vector<Measured> runs_;
  std::vector<Answer> answers_;
};

}  // namespace

std::vector<Answer> answers(const std::vector<TracedRun>& runs) { return Answers(runs).take(); }

}  // namespace report
