#include "tools/report/memory_answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tools/report/parts.h"

namespace report {
namespace {

using lockstep::TraceEvent;

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

std::size_t devices(const TracedRun& traced) { return median_step(traced.steps).lanes.size(); }

// Where that peak is measured: memory is counted per process.
std::string where(const TracedRun& traced) {
  if (devices(traced) < 2) return "";
  return traced.run.has_ranks() ? " (on the rank that needs most)"
                                : " (on all devices together, including the gradients of the others)";
}

class MemoryAnswers {
 public:
  explicit MemoryAnswers(const std::vector<TracedRun>& runs) {
    for (const TracedRun& traced : runs)
      if (!traced.steps.empty()) runs_.push_back(&traced);
  }

  std::vector<Answer> take() {
    const Run* whole = nullptr;
    for (const std::string_view mode : {"ddp", "accumulate", "dp", "single"})
      for (const TracedRun* traced : runs_)
        if (!whole && traced->run.mode == mode && traced->run.memory.is_known()) whole = &traced->run;
    if (!whole || runs_.size() < 2) return {};
    tell_all(whole->memory);
    compare(*whole);
    return std::move(answers_);
  }

 private:
  void tell_all(const ModelMemory& all) {
    std::vector<std::string> on_first, on_ranks, peaks;
    std::string more;
    for (const TracedRun* traced : runs_) {
      const Run& run = traced->run;
      if (run.memory == all) (run.has_ranks() ? on_ranks : on_first).push_back(run.name);
      if (const std::int64_t above = peak_above_end(median_step(traced->steps)); above > 0)
        peaks.push_back(fmt::format("{} more in {}{}", size_text(above), run.name, where(*traced)));
      if (run.mode == "dp" && devices(*traced) > 1)
        more += fmt::format(
            " In {}, each other device holds a copy of the parameters ({}), gradients until they are summed on cpu:0 "
            "({}), and no optimizer state.",
            run.name, size_text(all.parameters), size_text(all.gradients));
    }
    std::vector<std::string> places;
    if (!on_first.empty()) places.push_back("on cpu:0 in " + listed(on_first));
    if (!on_ranks.empty()) places.push_back("on each rank in " + listed(on_ranks));
    std::string text = fmt::format("Parameters take {}, gradients {} and optimizer state {}: {} in total, {}.{}",
                                   size_text(all.parameters), size_text(all.gradients), size_text(all.optimizer),
                                   size_text(all.total()), fmt::join(places, ", and "), more);
    if (!peaks.empty())
      text += fmt::format(
          " At its peak, a step needs more memory than at its end, for activations, temporary tensors and, with "
          "several micro-batches, gradients that have not been summed yet (up to {}): {}.",
          size_text(all.gradients), listed(peaks));
    if (has_mode("single") && has_mode("ddp"))
      text +=
          " In single, activations use the memory of the gradients until backward needs it; in ddp, each rank keeps "
          "that memory in buckets.";
    answers_.push_back({"What memory do the strategies need?", text + sharding(all)});
  }

  bool has_mode(std::string_view mode) const {
    return std::ranges::any_of(runs_, [mode](const TracedRun* traced) { return traced->run.mode == mode; });
  }

  // The bytes on a rank if the model were sharded; empty if a run is sharded.
  std::string sharding(const ModelMemory& all) const {
    std::size_t n = 0;
    for (const TracedRun* traced : runs_) {
      if (traced->run.is_sharded()) return "";
      n = std::max(n, devices(*traced));
    }
    if (n < 2) return "";
    const auto part = [n](std::int64_t bytes) { return bytes / static_cast<std::int64_t>(n); };
    const std::int64_t zero1 = all.parameters + all.gradients + part(all.optimizer),
                       zero2 = all.parameters + part(all.gradients) + part(all.optimizer);
    const auto kept = [&](std::int64_t bytes) {
      return fmt::format("{} ({} less)", size_text(bytes), size_text(all.total() - bytes));
    };
    return fmt::format(
        " Sharding saves memory: of {} ranks, each would keep {} with zero1, which shards the optimizer state; {} with "
        "zero2, which also shards the gradients; and {} with zero3 (FSDP), which also shards the parameters, and needs "
        "buffers for the layers that are being computed.",
        n, kept(zero1), kept(zero2), kept(part(all.total())));
  }

  void compare(const Run& whole) {
    const ModelMemory& all = whole.memory;
    for (const TracedRun* traced : runs_) {
      const Run& run = traced->run;
      const ModelMemory& own = run.memory;
      if (&run == &whole || !own.is_known() || own.total() == all.total()) continue;
      const bool is_less = own.total() < all.total();
      const auto part = [&](std::int64_t ModelMemory::*bytes, const char* what) {
        return Part{is_less ? all.*bytes - own.*bytes : own.*bytes - all.*bytes,
                    fmt::format("{}: {} instead of {}", what, size_text(own.*bytes), size_text(all.*bytes))};
      };
      answers_.push_back(
          {fmt::format("How much memory does {} {}?", run.name, is_less ? "save" : "need"),
           fmt::format(
               "Each rank holds {} of parameters, gradients, optimizer state and buffers of units, {} {} than {} ({}). "
               "{}.",
               size_text(own.total()),
               percent(is_less ? 1 - ratio(own.total(), all.total()) : ratio(own.total(), all.total()) - 1),
               is_less ? "less" : "more", whole.name, size_text(all.total()),
               fmt::join(largest_parts(
                             {part(&ModelMemory::parameters, "Parameters"), part(&ModelMemory::gradients, "Gradients"),
                              part(&ModelMemory::optimizer, "Optimizer state"),
                              part(&ModelMemory::units, "Buffers of units")},
                             std::abs(all.total() - own.total())),
                         "; "))});
    }
  }

  std::vector<const TracedRun*> runs_;
  std::vector<Answer> answers_;
};

}  // namespace

std::vector<Answer> memory_answers(const std::vector<TracedRun>& runs) { return MemoryAnswers(runs).take(); }

}  // namespace report
