#include "support/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "support/strategy.h"
#include "tools/report/causes.h"
#include "tools/report/messages.h"

namespace samples {
namespace {

namespace ls = lockstep;
using ls::TraceEvent;
using ls::TraceKind;
using report::Arrival;
using report::Lane;
using report::LaneEvent;
using report::StepView;
using report::time_text;

std::string size(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1 << 10) return fmt::format("{} B", bytes);
  return bytes < 1 << 20 ? fmt::format("{:.1f} KiB", value / 1024) : fmt::format("{:.1f} MiB", value / (1 << 20));
}

// The reason for a copy of DataParallel, by lockstep::parallel::Phase.
const char* reason(int phase) {
  switch (static_cast<ls::parallel::Phase>(phase)) {
    case ls::parallel::Phase::kInputs:
      return "its micro-batch";
    case ls::parallel::Phase::kParameters:
      return "the updated parameters";
    case ls::parallel::Phase::kBuffers:
      return "the buffers";
    case ls::parallel::Phase::kOutputs:
      return "its outputs, for the loss";
    case ls::parallel::Phase::kLossGradient:
      return "the gradient of the loss for its samples";
    case ls::parallel::Phase::kGradients:
      return "its gradients, to be summed";
    default:
      return "data";
  }
}

// The contents of a message between stages.
std::string contents(const ls::parallel::ScheduleAction& message) {
  using ls::parallel::ActionKind;
  const bool is_gradient = message.kind == ActionKind::kSendBackward || message.kind == ActionKind::kReceiveBackward;
  // Gradients go to the stage before that of their sender, outputs to the one after it.
  const int stage = message.kind == ActionKind::kSendBackward     ? message.stage - 1
                    : message.kind == ActionKind::kReceiveForward ? message.stage - 1
                                                                  : message.stage;
  return fmt::format("the {}outputs of stage {} for micro-batch {}", is_gradient ? "gradients of the " : "", stage,
                     message.micro_batch);
}

// Waits for messages of one phase, one directly after the other, as one sentence. A name that comes again begins the next
// one.
class MessageWaits {
 public:
  bool takes(const TraceEvent& wait) const {
    return names_.empty() || wait.name == names_.back() ||
           (wait.labels.phase == phase_ && std::ranges::find(names_, wait.name) == names_.end());
  }
  void add(const TraceEvent& wait) {
    if (names_.empty()) begin_ = wait.begin;
    ns_ += wait.end - wait.begin;
    phase_ = wait.labels.phase;
    if (!names_.empty() && names_.back() == wait.name) return;
    names_.push_back(wait.name);
    const auto message = report::stage_message(wait.name);
    const bool is_receive = message ? report::is_receive(*message) : wait.name.starts_with("recv");
    const std::size_t space = wait.name.find(' ');
    Side& side = is_receive ? from_ : to_;
    side.rank = wait.labels.to;
    side.what.push_back(message                      ? contents(*message)
                        : space == std::string::npos ? "a message"
                                                     : wait.name.substr(space + 1));
  }
  bool is_empty() const { return names_.empty(); }
  std::int64_t begin() const { return begin_; }
  std::string text() const {
    const std::string from = fmt::format("{} from rank {}", fmt::join(from_.what, ", "), from_.rank),
                      to = fmt::format("{} to reach rank {}", fmt::join(to_.what, ", "), to_.rank),
                      waits = fmt::format("waits {} ", time_text(ns_));
    if (from_.what == to_.what)
      return waits + fmt::format("to exchange {} {}", fmt::join(from_.what, ", "),
                                 from_.rank == to_.rank
                                     ? fmt::format("with rank {}", to_.rank)
                                     : fmt::format("(from rank {}, to rank {})", from_.rank, to_.rank));
    return waits + "for " + (to_.what.empty() ? from : from_.what.empty() ? to : from + ", and " + to);
  }

 private:
  struct Side {
    int rank = 0;
    std::vector<std::string> what;
  };

  std::vector<std::string> names_;
  Side from_, to_;
  std::int64_t begin_ = 0, ns_ = 0;
  int phase_ = 0;
};

// The explanation of one lane, with the state that later sentences refer to.
class Story {
 public:
  Story(const Lane& lane, const StepView& step, bool has_ranks) : lane_(lane), step_(step), has_ranks_(has_ranks) {}

  std::string tell() {
    for (const LaneEvent& each : lane_.events) {
      if (each.event.kind == TraceKind::kBucketReady) last_gradient_ = std::max(last_gradient_, each.event.begin);
    }
    for (const LaneEvent& each : lane_.events) {
      if (each.event.kind == TraceKind::kWait && report::is_message(each.event)) {
        if (!messages_.takes(each.event)) end_messages();
        messages_.add(each.event);
        continue;
      }
      const std::string text = sentence(each.event, each.depth);
      if (text.empty()) continue;
      end_messages();
      add(each.event.begin, text);
    }
    end_messages();
    return out_;
  }

 private:
  void add(std::int64_t begin, const std::string& text) {
    fmt::format_to(std::back_inserter(out_), "  {:>9}  {}\n", time_text(begin - step_.begin), text);
  }

  void end_messages() {
    if (!messages_.is_empty()) add(messages_.begin(), messages_.text());
    messages_ = {};
  }

  // "0F3: " during this action of a pipeline's schedule.
  std::string action(const TraceEvent& event) const {
    for (const TraceEvent& each : lane_.actions)
      if (each.begin <= event.begin && event.end <= each.end) return each.name + ": ";
    return "";
  }

  std::string sentence(const TraceEvent& event, int depth) {
    const std::string lasts = time_text(event.end - event.begin);
    switch (event.kind) {
      case TraceKind::kForward:
        if (depth > 0 && event.name != "model") return "";
        return action(event) + (event.name == "loss" ? "computes the loss, " : "forward, ") + lasts;
      case TraceKind::kBackward:
        if (event.name != "backward") return "";
        backward_ = event.begin;
        return action(event) + "backward, " + lasts;
      case TraceKind::kOptimizer:
        return fmt::format("updates the parameters ({}), {}", event.name, lasts);
      case TraceKind::kUser:
        return depth == 0 ? fmt::format("{}, {}", event.name, lasts) : "";
      case TraceKind::kCopy:
        // A sharded model's gather, in which ranks read each other's memory, has no single receiver.
        if (event.labels.to < 0)
          return fmt::format("gathers {} from the other ranks' memory: {} counted as sent, {}", event.name,
                             size(event.labels.bytes), lasts);
        if (const auto message = report::stage_message(event.name))
          return fmt::format("sends rank {} {}: {}, {}", event.labels.to, contents(*message), size(event.labels.bytes),
                             lasts);
        return fmt::format("cpu:{} sends cpu:{} {}: {}, {}", event.labels.from, event.labels.to,
                           reason(event.labels.phase), size(event.labels.bytes), lasts);
      case TraceKind::kWait:
        if (has_ranks_) return wait_for_ranks(event);
        return fmt::format("waits for {}, {}", lane_.is_replica ? event.name : "the replicas", lasts);
      default:
        return bucket(event);
    }
  }

  std::string bucket(const TraceEvent& event) {
    const std::int64_t id = event.labels.id;
    if (event.kind == TraceKind::kBucketReady)
      return fmt::format("bucket {} is full after {}: {}", id, event.name, size(event.labels.bytes));
    if (event.kind == TraceKind::kBucketLaunched) {
      launched_[id] = event.begin;
      const bool early = event.begin < last_gradient_;
      return fmt::format("bucket {} is launched {} into backward{}", id, time_text(event.begin - backward_),
                         early ? "" : ", after the last gradient: nothing is left to overlap with");
    }
    if (event.kind != TraceKind::kBucketDone) return "";
    const auto launched = launched_.find(id);
    return launched == launched_.end() ? fmt::format("bucket {} holds the mean over all ranks", id)
                                       : fmt::format("bucket {} holds the mean over all ranks, {} after its launch", id,
                                                     time_text(event.begin - launched->second));
  }

  std::string wait_for_ranks(const TraceEvent& event) {
    const std::string what =
        fmt::format("waits {} for {} #{}", time_text(event.end - event.begin), event.name, event.labels.id);
    for (const Arrival& arrival : step_.arrivals) {
      if (arrival.id != event.labels.id || arrival.group != event.labels.group) continue;
      return arrival.is_certain ? fmt::format("{}: rank {} launched it last, {} after the first rank", what,
                                              arrival.last, time_text(arrival.late))
                                : what + ": all ranks launched it at the same time, within the error of their clocks";
    }
    return what;
  }

  const Lane& lane_;
  const StepView& step_;
  bool has_ranks_;
  std::int64_t backward_ = 0, last_gradient_ = 0;  // when backward began, and when the last gradient was ready
  std::map<std::int64_t, std::int64_t> launched_;  // by bucket
  MessageWaits messages_;                          // since the last sentence
  std::string out_;
};

}  // namespace

std::string explain(const std::string& mode, const report::StepView& step) {
  std::string text = fmt::format("Step {} in mode {}: {}\n", step.number, mode, time_text(step.end - step.begin));
  for (const report::Lane& lane : step.lanes) {
    const report::Shares& s = lane.shares;
    const auto percent = [&](std::int64_t ns) {
      return 100 * static_cast<double>(ns) / static_cast<double>(std::max<std::int64_t>(s.all(), 1));
    };
    text += fmt::format("{}: compute {:.0f} %, communication {:.0f} %, waiting {:.0f} %, other {:.0f} %\n", lane.name,
                        percent(s.compute), percent(s.communication), percent(s.waiting), percent(s.other));
    text += Story(lane, step, has_ranks(mode)).tell();
  }
  return text;
}

}  // namespace samples
