#include "tools/report/answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/parallel/schedule/schedule_internal.h"
#include "tools/report/causes.h"
#include "tools/report/messages.h"
#include "tools/report/parts.h"
#include "tools/report/pipeline.h"

namespace report {
namespace {

using lockstep::TraceEvent;
using lockstep::TraceKind;

constexpr double kClear = 0.05;   // a smaller share of a step is noise
constexpr double kSteady = 1.25;  // the longest of the middle half of the steps by the shortest
constexpr int kMoreDevices = 8;   // in the closed forms
constexpr std::size_t kWaitingLanes = 4;

// The bytes by which the memory at the peak of a step exceeds that at its end, on the lane with most; 0: unknown.
std::int64_t peak_above_end(const StepView& step) {
  std::int64_t most = 0;
  for (const Lane& lane : step.lanes) {
    std::int64_t peak = 0, end = -1;
    for (const TraceEvent& event : lane.memory) {
      peak = std::max(peak, event.labels.bytes);
      if (event.name == "memory") end = event.labels.bytes;
    }
    if (end >= 0) most = std::max(most, peak - end);
  }
  return most;
}

// A run with its costs.
struct Measured {
  const TracedRun* traced;
  StepCosts costs;

  const std::string& name() const { return traced->run.name; }
  const std::string& mode() const { return traced->run.mode; }
  bool has_ranks() const { return traced->run.has_ranks(); }
  const char* devices() const { return has_ranks() ? "ranks" : "devices"; }
  // The lane whose times are compared.
  std::string lane() const { return has_ranks() ? "a rank (on average)" : "cpu:0"; }
};

class Answers {
 public:
  explicit Answers(const std::vector<TracedRun>& runs) {
    for (const TracedRun& traced : runs)
      if (!traced.steps.empty()) runs_.push_back({&traced, costs_of(traced.run, median_step(traced.steps))});
  }

  std::vector<Answer> take() {
    const Measured *const ddp = find("ddp"), *const dp = find("dp"), *const single = find("single"),
                          *const accumulate = find("accumulate");
    warn_unsteady();
    if (dp && ddp) compare(*dp, *ddp);
    for (const Measured& run : runs_)
      if (ddp && run.traced->run.is_sharded()) compare(*ddp, run);
    if (const Measured* const alone = single ? single : accumulate) {
      for (const Measured& run : runs_)
        if (run.costs.lanes > 1) explain_speedup(*alone, run);
      bound_speedup(alone->costs);
    }
    if (single && accumulate) compare(*single, *accumulate);
    for (const Measured& run : runs_) {
      if (run.has_ranks() && run.costs.lanes > 1) explain_overlap(run);
    }
    for (const Measured& run : runs_)
      if (run.costs.lanes > 1) explain_waiting(run);
    for (const Measured& run : runs_) explain_pipeline(run);
    add_memories();
    extrapolate();
    return std::move(answers_);
  }

 private:
  const Measured* find(std::string_view mode) const {
    const auto run = std::ranges::find_if(runs_, [&](const Measured& each) { return each.mode() == mode; });
    return run == runs_.end() ? nullptr : &*run;
  }

  // Times of runs that something has disturbed mislead.
  void warn_unsteady() {
    std::vector<std::string> ranges;
    for (const Measured& run : runs_) {
      std::vector<std::int64_t> times;
      for (const StepView& step : run.traced->steps) times.push_back(step.end - step.begin);
      std::ranges::sort(times);
      const std::int64_t low = times[times.size() / 4], high = times[times.size() - 1 - times.size() / 4];
      if (static_cast<double>(high) > kSteady * static_cast<double>(low))
        ranges.push_back(fmt::format("{} to {} in {}", in_unit_of(high, low), time_text(high), run.name()));
    }
    if (ranges.empty()) return;
    answers_.push_back(
        {"How steady are the times?",
         fmt::format("Not very: the middle half of the traced steps takes {}. If other programs ran meanwhile, repeat "
                     "the run without them before you compare times.",
                     listed(ranges))});
  }

  // Why one of two strategies on as many devices is faster.
  void compare(const Measured& a, const Measured& b) {
    const Measured &slow = a.costs.step >= b.costs.step ? a : b, &fast = &slow == &a ? b : a;
    const std::int64_t more = slow.costs.step - fast.costs.step;
    if (slow.costs.lanes != fast.costs.lanes || ratio(more, slow.costs.step) < kClear) return;
    const auto part = [&](std::int64_t StepCosts::*cost, const char* what) {
      const std::int64_t s = slow.costs.*cost, f = fast.costs.*cost;
      return Part{s - f, fmt::format("{} ({} instead of {})", what, in_unit_of(slow.costs.step, f),
                                     in_unit_of(slow.costs.step, s))};
    };
    answers_.push_back({fmt::format("Why is {} faster than {}?", fast.name(), slow.name()),
                        fmt::format("A step takes {} instead of {}. Compared with {} of {}, {} of {} saves {}.",
                                    time_text(fast.costs.step), time_text(slow.costs.step), slow.lane(), slow.name(),
                                    fast.lane(), fast.name(),
                                    sum_text({part(&StepCosts::model, "in forward and backward"),
                                              part(&StepCosts::optimizer, "in the optimizer's step"),
                                              part(&StepCosts::communication, "of exposed communication"),
                                              part(&StepCosts::waiting, "of waiting"),
                                              part(&StepCosts::other, "of loading data and bookkeeping"),
                                              part(&StepCosts::apart, "idle at the start or end of the step")},
                                             more, slow.costs.step))});
  }

  // Why n devices are not n times as fast as one.
  void explain_speedup(const Measured& alone, const Measured& run) {
    const StepCosts &one = alone.costs, &costs = run.costs;
    const std::int64_t n = costs.lanes, lost = costs.step - one.step / n;
    if (ratio(lost, costs.step) < kClear) return;
    const double speedup = ratio(one.step, costs.step);
    const auto beyond = [&](std::int64_t StepCosts::*cost) { return costs.*cost - one.*cost / n; };
    std::vector<Part> parts = {
        {beyond(&StepCosts::model),
         fmt::format("in forward and backward ({} for 1/{} of the work that takes {} in {})",
                     in_unit_of(costs.step, costs.model), n, in_unit_of(costs.step, one.model), alone.name())},
        {beyond(&StepCosts::communication), "of exposed communication"},
        {beyond(&StepCosts::waiting), "of waiting"},
        {beyond(&StepCosts::other), "of loading data and bookkeeping"},
        {beyond(&StepCosts::apart),
         "idle at the start or end of the step, since the ranks do not begin and end together"}};
    if (repeats_optimizer(one, run)) {
      const std::int64_t slower = costs.optimizer - one.optimizer;
      parts.push_back(
          {one.optimizer - one.optimizer / n,
           fmt::format("because the optimizer's step is not divided: {} runs all of it ({} in {})",
                       run.has_ranks() ? "each rank" : "cpu:0", in_unit_of(costs.step, one.optimizer), alone.name())});
      parts.push_back({slower, fmt::format("because the optimizer's step ran {} ({})", slower < 0 ? "faster" : "slower",
                                           in_unit_of(costs.step, costs.optimizer))});
    } else {
      parts.push_back({beyond(&StepCosts::optimizer), "in the optimizer's step"});
    }
    answers_.push_back(
        {speedup >= 1 ? fmt::format("Why is {} only {:.2f} times as fast as {}, not {} times?", run.name(), speedup,
                                    alone.name(), n)
                      : fmt::format("Why is {} slower than {}, not {} times as fast?", run.name(), alone.name(), n),
         fmt::format("A step takes {}; ideally it would take {} ({}'s {} divided by {}). The extra {} of {} are {}.",
                     time_text(costs.step), time_text(one.step / n), alone.name(), time_text(one.step), n,
                     in_unit_of(costs.step, lost), run.lane(), sum_text(parts, lost, costs.step))});
  }

  // Whether the optimizer's step takes about as long as on one device, and enough of that device's step to matter.
  static bool repeats_optimizer(const StepCosts& one, const Measured& run) {
    return (run.mode() == "dp" || run.mode() == "ddp") && ratio(one.optimizer, one.step) >= kPart &&
           ratio(run.costs.optimizer, one.optimizer) > 0.75;
  }

  // The bound that the optimizer's step sets, for the runs that do not divide it.
  void bound_speedup(const StepCosts& one) {
    const double serial = ratio(one.optimizer, one.step);
    std::vector<std::string> names;
    std::map<int, std::string> bounds;  // by number of devices
    for (const Measured& run : runs_) {
      if (run.costs.lanes < 2 || !repeats_optimizer(one, run)) continue;
      names.push_back(run.name());
      const int n = run.costs.lanes;
      bounds[n] = fmt::format("{:.2f} on {} devices", 1 / (serial + (1 - serial) / n), n);
    }
    if (names.empty()) return;
    std::string zero = "ZeRO stage 1 (zero1) would divide this step, too.";
    for (const Measured& run : runs_) {
      if (!run.traced->run.is_sharded() || !bounds.contains(run.costs.lanes)) continue;
      zero = fmt::format("{} divides this step, too: {} on each rank.", run.name(), time_text(run.costs.optimizer));
      break;
    }
    std::vector<std::string> most;
    for (const auto& each : bounds) most.push_back(each.second);
    answers_.push_back(
        {fmt::format("How fast can {} become?", listed(names)),
         fmt::format("The optimizer's step is {} of a step on one device. Even if the rest were divided perfectly, the "
                     "speed-up would be at most {}, and {:.1f} however many there are (Amdahl's law). {}",
                     fmt::format("{:.1f} %", 100 * serial), fmt::join(most, ", "), 1 / serial, zero)});
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
    const std::string exposed = fmt::format(" In the median step a rank (on average) spends {} only communicating.",
                                            in_unit_of(run.costs.step, run.costs.communication));
    const std::string question = fmt::format("What overlaps in {}?", run.name());
    if (sum.bytes == 0) return explain_flights(run, question, exposed);
    if (sum.early_bytes > 0)
      answers_.push_back(
          {question,
           fmt::format("{} of the communication's time, and {} of its bytes, overlap with backward: those of buckets "
                       "whose all-reduce ends before the last gradient is ready.{}",
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
    Part longest_wait = {0, ""};  // lane
    for (const Lane& lane : step.lanes) {
      std::int64_t sum = 0;
      const Cause* longest = nullptr;
      for (const Cause& cause : causes) {
        if (cause.lane != lane.name || !cause.is_waiting) continue;
        sum += cause.ns;
        if (!longest) longest = &cause;
      }
      if (sum > longest_wait.size) longest_wait = {sum, lane.name};
      if (!longest || ratio(sum, run.costs.step) < kClear) continue;
      const std::string of_it = longest->ns == sum ? "all of it" : in_unit_of(run.costs.step, longest->ns) + " of it";
      parts.push_back(
          {sum, fmt::format("{} waits {} of {} ({}), {} for {}", lane.name, in_unit_of(run.costs.step, sum),
                            time_text(run.costs.step), percent(ratio(sum, run.costs.step)), of_it, longest->what)});
    }
    std::ranges::stable_sort(parts, std::ranges::greater(), &Part::size);
    if (parts.size() > kWaitingLanes) parts.resize(kWaitingLanes);
    std::string text = largest_parts(parts, 0) + ".";
    if (parts.empty() && longest_wait.size == 0)
      text = "Nobody.";
    else if (parts.empty())
      text = fmt::format("Nobody for long: {} waits most, {} of {} ({}).", longest_wait.text,
                         in_unit_of(run.costs.step, longest_wait.size), time_text(run.costs.step),
                         percent(ratio(longest_wait.size, run.costs.step)));
    answers_.push_back({fmt::format("Who waits in {}?", run.name()), std::move(text)});
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

  // Memory of the strategies that keep all of the model, and that of the others against it.
  void add_memories() {
    const Measured* whole = nullptr;
    for (const char* mode : {"ddp", "accumulate", "dp", "single"})
      if (!whole && find(mode) && find(mode)->traced->run.memory.is_known()) whole = find(mode);
    if (!whole || runs_.size() < 2) return;
    add_memory_of_all(whole->traced->run.memory);
    compare_memory(*whole);
  }

  void add_memory_of_all(const ModelMemory& all) {
    std::vector<std::string> on_first, on_ranks, peaks;
    std::string replicas;
    for (const Measured& run : runs_) {
      if (run.traced->run.memory == all) (run.has_ranks() ? on_ranks : on_first).push_back(run.name());
      if (const std::int64_t above = peak_above_end(median_step(run.traced->steps)); above > 0)
        peaks.push_back(fmt::format("{} in {}", size_text(above), run.name()));
      if (run.mode() == "dp" && run.costs.lanes > 1)
        replicas = fmt::format(
            " Each further device of {} holds only a copy of the parameters and, in backward, gradients.", run.name());
    }
    std::vector<std::string> places;
    if (!on_first.empty()) places.push_back("on cpu:0 of " + listed(on_first));
    if (!on_ranks.empty()) places.push_back("on each rank of " + listed(on_ranks));
    std::string text = fmt::format("Parameters take {}, gradients {} and the optimizer's state {}, in total {}, {}.{}",
                                   size_text(all.parameters), size_text(all.gradients), size_text(all.optimizer),
                                   size_text(all.total()), fmt::join(places, ", and "), replicas);
    if (!peaks.empty())
      text += fmt::format(
          " At its peak a step needs more, for activations and temporary tensors (such as the gradient of one "
          "weight): {}.",
          listed(peaks));
    if (std::ranges::none_of(runs_, [](const Measured& run) { return run.traced->run.is_sharded(); }))
      text +=
          " Sharding saves memory: on n ranks each keeps 1/n of the optimizer's state with zero1, also of the "
          "gradients with zero2, also of the parameters with zero3 (FSDP).";
    answers_.push_back({"What memory do the strategies need?", std::move(text)});
  }

  void compare_memory(const Measured& whole) {
    const ModelMemory& all = whole.traced->run.memory;
    for (const Measured& run : runs_) {
      const ModelMemory& own = run.traced->run.memory;
      if (&run == &whole || !own.is_known() || own.total() == all.total()) continue;
      const auto part = [&](std::int64_t ModelMemory::*bytes, const char* what) {
        const std::int64_t difference = own.total() < all.total() ? all.*bytes - own.*bytes : own.*bytes - all.*bytes;
        return Part{difference, fmt::format("{} {} instead of {}", what, size_text(own.*bytes), size_text(all.*bytes))};
      };
      const bool is_less = own.total() < all.total();
      answers_.push_back(
          {fmt::format("How much memory does {} {}?", run.name(), is_less ? "save" : "need"),
           fmt::format(
               "A rank has {} of parameters, gradients, optimizer state and buffers of units: {} {} than {} ({}). {}.",
               size_text(own.total()),
               percent(is_less ? 1 - ratio(own.total(), all.total()) : ratio(own.total(), all.total()) - 1),
               is_less ? "less" : "more", whole.name(), size_text(all.total()),
               largest_parts(
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
      texts.push_back(fmt::format("{} = {} on {} of {} (here {})", formula.text(), bytes_text(then * bytes),
                                  formula.kind == ByteFormula::Kind::kHub ? "cpu:0" : "each rank", run.name(),
                                  bytes_text(now * bytes)));
    }
    if (texts.size() < 2) return;
    answers_.push_back(
        {fmt::format("What would change on {} devices?", kMoreDevices),
         fmt::format("For parameters and gradients, a step would send and receive {}. P = {} is the size of "
                     "the parameters.",
                     listed(texts), bytes_text(bytes))});
  }

  std::vector<Measured> runs_;
  std::vector<Answer> answers_;
};

}  // namespace

std::vector<Answer> answers(const std::vector<TracedRun>& runs) { return Answers(runs).take(); }

}  // namespace report
