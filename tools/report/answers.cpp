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
#include "tools/report/memory_answers.h"
#include "tools/report/messages.h"
#include "tools/report/overlap_answers.h"
#include "tools/report/parts.h"
#include "tools/report/pipeline.h"

namespace report {
namespace {

using lockstep::TraceEvent;
using lockstep::TraceKind;

constexpr double kSteady = 1.25;  // the longest of the middle half of the steps by the shortest
constexpr int kMoreDevices = 8;   // in the closed forms
constexpr std::size_t kWaitingLanes = 4;
constexpr double kShown = 0.01;  // of a step: a shorter wait is not listed

// Measured: with four arrays of 2 MB, AdamW takes 0.28 ms instead of 0.12 ms if another core has copied one of them.
constexpr const char* kTakenFromCaches =
    "in dp the caches of the cores that copied the parameters must give them up before cpu:0 writes them";

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
  explicit Answers(const std::vector<TracedRun>& runs) : all_(runs) {
    for (const TracedRun& traced : runs)
      if (!traced.steps.empty()) runs_.push_back({&traced, costs_of(traced.run, median_step(traced.steps))});
  }

  std::vector<Answer> take() {
    const Measured *const ddp = find("ddp"), *const dp = find("dp"), *const single = find("single"),
                          *const accumulate = find("accumulate");
    warn_unsteady();
    tell_whole_runs();
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
      if (std::optional<Answer> overlap = overlap_answer(*run.traced, run.costs))
        answers_.push_back(std::move(*overlap));
    }
    for (const Measured& run : runs_)
      if (run.costs.lanes > 1) explain_waiting(run);
    for (const Measured& run : runs_) explain_pipeline(run);
    for (Answer& each : memory_answers(all_)) answers_.push_back(std::move(each));
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

  // The steps of the whole run may be faster or slower than the traced ones.
  void tell_whole_runs() {
    std::vector<std::string> whole, traced;
    bool differs = false;
    for (const Measured& run : runs_) {
      const std::int64_t in_run = run.traced->run.step_ns, step = run.costs.step;
      if (in_run == 0) continue;
      whole.push_back(fmt::format("{} in {}", in_unit_of(step, in_run), run.name()));
      traced.push_back(fmt::format("{} in {}", in_unit_of(step, step), run.name()));
      differs = differs || ratio(std::abs(in_run - step), step) >= kClear;
    }
    if (differs)
      answers_.push_back(
          {"How long is a step in the whole run?",
           fmt::format("The median step takes {}. In the traced steps, which the answers below are about, "
                       "it takes {}.",
                       listed(whole), listed(traced))});
  }

  // Why one of two strategies on as many devices is faster.
  void compare(const Measured& a, const Measured& b) {
    const Measured &slow = a.costs.step >= b.costs.step ? a : b, &fast = &slow == &a ? b : a;
    const std::int64_t more = slow.costs.step - fast.costs.step;
    if (slow.costs.lanes != fast.costs.lanes) return;
    if (ratio(more, slow.costs.step) < kClear) {
      answers_.push_back({fmt::format("Which is faster, {} or {}?", a.name(), b.name()),
                          fmt::format("Neither, as far as these steps can tell: {} and {}.{}",
                                      in_unit_of(slow.costs.step, a.costs.step),
                                      in_unit_of(slow.costs.step, b.costs.step), whole_text(a, b))});
      return;
    }
    const std::int64_t unit = slow.costs.step;
    const auto part = [&](std::int64_t StepCosts::*cost, const std::string& what) {
      const std::int64_t s = slow.costs.*cost, f = fast.costs.*cost;
      const std::string less = in_unit_of(unit, f), more_text = in_unit_of(unit, s);
      return Part{less == more_text ? 0 : s - f, fmt::format("{} ({} instead of {})", what, less, more_text)};
    };
    answers_.push_back(
        {fmt::format("Why is {} faster than {}?", fast.name(), slow.name()),
         fmt::format("A step takes {} instead of {}.{} Compared with {} of {}, {} of {} saves {}.",
                     in_unit_of(unit, fast.costs.step), in_unit_of(unit, slow.costs.step),
                     reason(slow.mode(), fast.mode()), slow.lane(), slow.name(), fast.lane(), fast.name(),
                     sum_text({part(&StepCosts::model, "in forward and backward" + model_reason(slow, fast)),
                               part(&StepCosts::optimizer, "in the optimizer's step" + optimizer_reason(slow, fast)),
                               part(&StepCosts::communication, "of exposed communication"),
                               part(&StepCosts::waiting, "of waiting"),
                               part(&StepCosts::other, "of loading data and bookkeeping" + other_reason(slow, fast)),
                               part(&StepCosts::apart, "idle at the start or end of the step")},
                              more, unit))});
  }

  // The run that is clearly faster over all its steps, or nothing.
  static std::string whole_text(const Measured& a, const Measured& b) {
    const Measured &slow = a.traced->run.step_ns >= b.traced->run.step_ns ? a : b, &fast = &slow == &a ? b : a;
    const std::int64_t most = slow.traced->run.step_ns, least = fast.traced->run.step_ns;
    if (least == 0 || ratio(most - least, most) < kClear) return "";
    return fmt::format(" Over the whole run {} is faster: a step takes {} instead of {}.", fast.name(),
                       in_unit_of(most, least), in_unit_of(most, most));
  }

  // Replicas compute the same, so what differs is what runs at the same time.
  static std::string model_reason(const Measured& slow, const Measured& fast) {
    if (!are_replicas(slow, fast)) return "";
    const bool is_dp = (slow.costs.model >= fast.costs.model ? slow : fast).mode() == "dp";
    return fmt::format(", which compute the same in both, but {} meanwhile",
                       is_dp ? "in dp parameters are copied" : "in ddp gradients are all-reduced");
  }

  static std::string other_reason(const Measured& slow, const Measured& fast) {
    const bool is_dp = (slow.costs.other >= fast.costs.other ? slow : fast).mode() == "dp";
    return are_replicas(slow, fast) && is_dp ? ", as in dp cpu:0 loads the batches of all devices" : "";
  }

  static std::string optimizer_reason(const Measured& slow, const Measured& fast) {
    if (!computes_the_same(slow, fast)) return "";
    const bool is_dp = (slow.costs.optimizer >= fast.costs.optimizer ? slow : fast).mode() == "dp";
    return std::string(", which computes the same in both") + (is_dp ? fmt::format(", but {}", kTakenFromCaches) : "");
  }

  static bool are_replicas(const Measured& a, const Measured& b) {
    return (a.mode() == "dp" && b.mode() == "ddp") || (a.mode() == "ddp" && b.mode() == "dp");
  }

  // The difference between two strategies that the parts of the time follow from.
  static const char* reason(const std::string& slow, const std::string& fast) {
    if (slow == "dp" && fast == "ddp")
      return " In dp, all inputs and parameters come from cpu:0, which alone computes the loss and runs the optimizer "
             "while the others wait; in ddp every rank does the same work at the same time.";
    if (slow == "accumulate" && fast == "single")
      return " accumulate runs each layer once per micro-batch, on fewer examples at a time, which costs more per "
             "example.";
    return "";
  }

  // The time in forward and backward beyond the n-th part of that on one device. A run of the same micro-batches one
  // after another tells what is due to their size, and what to devices that run at the same time.
  std::vector<Part> model_parts(const Measured& alone, const Measured& run) const {
    const std::int64_t n = run.costs.lanes, own = run.costs.model, ideal = alone.costs.model / n;
    const auto text = [&](std::int64_t ns) { return in_unit_of(alone.costs.step, ns); };
    const std::string part =
        fmt::format("1/{} of {}'s {} would be {}", n, alone.name(), text(alone.costs.model), text(ideal));
    const Measured* const turns = find("accumulate");
    const bool is_comparable = turns && turns != &alone && run.mode() != "ranks";
    const std::int64_t in_turn = is_comparable ? turns->costs.model / n : 0;
    if (!is_comparable || own < ideal)
      return {{own - ideal, fmt::format("in forward and backward ({}; {})", text(own), part)}};
    if (own < in_turn)
      return {
          {own - ideal, fmt::format("in forward and backward because micro-batches are smaller than the batch ({}; {})",
                                    text(own), part)}};
    const std::string together = fmt::format(
        "in forward and backward because the {} compute at the same time, on shared caches and memory{} ({}",
        run.devices(), run.mode() == "dp" ? ", while parameters are copied" : "", text(own));
    if (in_turn < ideal)
      return {{own - ideal,
               fmt::format("{}; {}; one after another, in {}, {})", together, part, turns->name(), text(in_turn))}};
    return {
        {own - in_turn, fmt::format("{}; one after another, in {}, {})", together, turns->name(), text(in_turn))},
        {in_turn - ideal,
         fmt::format(
             "in forward and backward because micro-batches are smaller than the batch ({} per micro-batch in {}; {})",
             text(in_turn), turns->name(), part)}};
  }

  // Why n devices are not n times as fast as one.
  void explain_speedup(const Measured& alone, const Measured& run) {
    const StepCosts &one = alone.costs, &costs = run.costs;
    const std::int64_t n = costs.lanes, lost = costs.step - one.step / n;
    if (ratio(lost, costs.step) < kClear) return;
    const double speedup = ratio(one.step, costs.step);
    const auto text = [&](std::int64_t ns) { return in_unit_of(one.step, ns); };
    const auto beyond = [&](std::int64_t StepCosts::*cost) { return costs.*cost - one.*cost / n; };
    std::vector<Part> parts = model_parts(alone, run);
    parts.insert(parts.end(),
                 {{beyond(&StepCosts::communication), "of exposed communication"},
                  {beyond(&StepCosts::waiting), "of waiting"},
                  {beyond(&StepCosts::other), "of loading data and bookkeeping"},
                  {beyond(&StepCosts::apart),
                   "idle at the start or end of the step, since the ranks do not begin and end together"}});
    if (repeats_optimizer(one, run)) {
      const std::int64_t slower = costs.optimizer - one.optimizer;
      parts.push_back({one.optimizer - one.optimizer / n,
                       fmt::format("because the optimizer's step is not divided: {} runs all of it ({} in {})",
                                   run.has_ranks() ? "each rank" : "cpu:0", text(one.optimizer), alone.name())});
      const std::string reason = slower < 0 ? ""
                                 : run.mode() == "dp"
                                     ? fmt::format("; {}", kTakenFromCaches)
                                     : "; the ranks run it at the same time, on shared caches and memory";
      parts.push_back({slower, fmt::format("because the optimizer's step ran {} ({}{})",
                                           slower < 0 ? "faster" : "slower", text(costs.optimizer), reason)});
    } else {
      parts.push_back({beyond(&StepCosts::optimizer), "in the optimizer's step"});
    }
    answers_.push_back(
        {speedup > 1 + kClear ? fmt::format("Why is {} only {:.2f} times as fast as {}, not {} times?", run.name(),
                                            speedup, alone.name(), n)
                              : fmt::format("Why is {} {} {}, not {} times as fast?", run.name(),
                                            speedup < 1 - kClear ? "slower than" : "about as fast as", alone.name(), n),
         fmt::format("A step takes {}; ideally it would take {} ({}'s {} divided by {}). The extra {} of {} are {}.",
                     text(costs.step), text(one.step / n), alone.name(), text(one.step), n, text(lost), run.lane(),
                     sum_text(parts, lost, one.step))});
  }

  // Whether the optimizer updates all parameters once on a device of both.
  static bool computes_the_same(const Measured& a, const Measured& b) {
    return !a.traced->run.is_sharded() && !b.traced->run.is_sharded() && a.mode() != "ranks" && b.mode() != "ranks";
  }

  // Whether the optimizer's step takes about as long as on one device, or longer.
  static bool repeats_optimizer(const StepCosts& one, const Measured& run) {
    return (run.mode() == "dp" || run.mode() == "ddp") && ratio(run.costs.optimizer, one.optimizer) > 0.55;
  }

  // The bound that the optimizer's step sets, for the runs that do not divide it.
  void bound_speedup(const StepCosts& one) {
    const double serial = ratio(one.optimizer, one.step);
    if (serial < kPart) return;
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
         fmt::format(
             "The optimizer's step is {:.2f} % of a step on one device. Even if the rest were divided "
             "perfectly, the speed-up would be at most {}, and {:.1f} however many there are (Amdahl's law). {}",
             100 * serial, fmt::join(most, ", "), 1 / serial, zero)});
  }

  // The lanes that wait for at least 5 % of the median step, and their causes.
  void explain_waiting(const Measured& run) {
    const StepView& step = median_step(run.traced->steps);
    const std::vector<Cause> causes = causes_of(run.traced->run, {step});
    std::vector<Part> parts;
    Part longest_wait = {0, ""};   // lane
    Part longest_cause = {0, ""};  // of all lanes
    for (const Lane& lane : step.lanes) {
      std::int64_t sum = 0;
      std::vector<Part> reasons;
      for (const Cause& cause : causes) {
        if (cause.lane != lane.name || !cause.is_waiting) continue;
        sum += cause.ns;
        reasons.push_back({cause.ns, fmt::format("{} for {}", in_unit_of(run.costs.step, cause.ns), cause.what) +
                                         later_text(run, cause)});
        if (longest_cause.size < cause.ns) longest_cause = {cause.ns, cause.what + later_text(run, cause)};
      }
      if (sum > longest_wait.size) longest_wait = {sum, lane.name};
      if (ratio(sum, run.costs.step) < kShown) continue;
      parts.push_back({sum, fmt::format("{} waits {} of {} ({}): {}", lane.name, in_unit_of(run.costs.step, sum),
                                        time_text(run.costs.step), percent(ratio(sum, run.costs.step)),
                                        fmt::join(reasons_text(reasons, sum, run.costs.step), ", "))});
    }
    std::ranges::stable_sort(parts, std::ranges::greater(), &Part::size);
    if (ratio(longest_wait.size, run.costs.step) < kClear) parts.clear();
    if (parts.size() > kWaitingLanes) parts.resize(kWaitingLanes);
    std::string text = fmt::format("{}.", fmt::join(largest_parts(parts, 0), "; "));
    if (parts.empty()) {
      text = run.has_ranks() ? "Nobody waits for another rank in the median step." : "Nobody in the median step.";
      if (longest_wait.size > 0)
        text = fmt::format("Nobody for long: {} waits most, {} of {} ({}), for {}.{}", longest_wait.text,
                           time_text(longest_wait.size), time_text(run.costs.step),
                           percent(ratio(longest_wait.size, run.costs.step)), longest_cause.text,
                           run.has_ranks() ? " A late launch costs nothing while the other ranks still compute." : "");
      text += fmt::format(" On average over the traced steps a {} waits {}.", run.has_ranks() ? "rank" : "device",
                          time_text(mean_wait(*run.traced)));
    }
    answers_.push_back({fmt::format("Who waits in {}?", run.name()), std::move(text)});
  }

  // The time for which a lane waits in a step, as a mean over lanes and steps.
  static std::int64_t mean_wait(const TracedRun& traced) {
    std::int64_t sum = 0, lanes = 0;
    for (const StepView& step : traced.steps) {
      for (const Lane& lane : step.lanes) sum += lane.shares.waiting, ++lanes;
    }
    return sum / std::max<std::int64_t>(lanes, 1);
  }

  // Why a replica or a rank is awaited.
  static std::string later_text(const Measured& run, const Cause& cause) {
    if (!cause.later) return "";
    const std::int64_t step = run.costs.step;
    const std::string later = in_unit_of(step, *cause.later), nothing = in_unit_of(step, 0);
    if (!run.has_ranks()) {
      if (2 * *cause.later < cause.ns) return "";
      return fmt::format(" (it begins {} after {}'s, when its copies have arrived)", later, cause.lane);
    }
    const std::string longer = in_unit_of(step, std::max<std::int64_t>(0, cause.ns - *cause.later));
    if (later == nothing) return " (it took longer until then)";
    return fmt::format(" (it began the step {} later{})", later,
                       longer == nothing ? "" : fmt::format(" and took {} longer until then", longer));
  }

  // The largest reasons of a wait, and the time of the others.
  static std::vector<std::string> reasons_text(const std::vector<Part>& reasons, std::int64_t sum, std::int64_t step) {
    std::vector<std::string> texts = largest_parts(reasons, sum);
    std::int64_t rest = 0;
    for (const Part& reason : reasons)
      if (ratio(reason.size, sum) < kPart) rest += reason.size;
    const std::string text = in_unit_of(step, rest);
    if (rest > 0 && !text.starts_with("0.00")) texts.push_back(text + " in shorter waits");
    return texts;
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

  const std::vector<TracedRun>& all_;
  std::vector<Measured> runs_;
  std::vector<Answer> answers_;
};

}  // namespace

std::vector<Answer> answers(const std::vector<TracedRun>& runs) { return Answers(runs).take(); }

}  // namespace report
