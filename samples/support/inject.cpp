#include "support/inject.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/stop.h"

namespace samples {
namespace {

constexpr std::int64_t kLongestDelay = 3'600'000;  // ms
constexpr std::size_t kQuoted = 80;

struct NamedKind {
  std::string_view name;
  Injection::Kind kind;
};
constexpr NamedKind kKinds[] = {{"kill", Injection::Kind::kKill},       {"stop", Injection::Kind::kStop},
                                {"delay", Injection::Kind::kDelay},     {"drop", Injection::Kind::kDrop},
                                {"corrupt", Injection::Kind::kCorrupt}, {"mismatch", Injection::Kind::kMismatch}};

[[noreturn]] void refuse(std::string_view text, const std::string& what) {
  throw lockstep::InvalidArgument(fmt::format(
      "--inject \"{}\": {}\nExpected kill, stop, delay, drop, corrupt or mismatch, as kill:rank=1,step=17 or "
      "delay:rank=1,step=17,ms=200",
      text.substr(0, kQuoted), what));
}

std::int64_t to_number(std::string_view key, std::string_view value, std::int64_t least, std::int64_t most,
                       std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least || number > most)
    refuse(text, fmt::format("{} is \"{}\", not a number from {} to {}", key, value.substr(0, kQuoted), least, most));
  return number;
}

// Sleeps until the time is over or a stop signal arrives: a launcher stops a late rank when others have timed out.
void sleep_unless_stopped(std::int64_t milliseconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(milliseconds);
  while (Clock::now() < end && stop_signal() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Whether a launcher has restarted the ranks after a failure.
bool is_restarted() {
  const char* const count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count && std::string_view(count) != "0" && std::string_view(count) != "";
}

}  // namespace

Injection Injection::parse(std::string_view text) {
  Injection injection;
  if (text.empty()) return injection;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const NamedKind& each : kKinds) {
    if (each.name == name) injection.kind_ = each.kind;
  }
  if (injection.kind_ == Kind::kNone) refuse(text, fmt::format("there is no fault \"{}\"", name.substr(0, kQuoted)));
  if (colon == std::string_view::npos) refuse(text, "neither rank nor step is given");
  for (std::size_t begin = colon + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view pair = text.substr(begin, end - begin);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) refuse(text, fmt::format("\"{}\" is not key=value", pair.substr(0, kQuoted)));
    injection.set(pair.substr(0, equals), pair.substr(equals + 1), text);
    begin = end + 1;
  }
  if (injection.rank_ < 0) refuse(text, "rank is not given");
  if (injection.step_ == 0) refuse(text, "step is not given");
  if (injection.kind_ == Kind::kDelay && injection.milliseconds_ == 0) refuse(text, "ms is not given");
  return injection;
}

void Injection::check_rank(int ranks) const {
  if (kind_ != Kind::kNone && rank_ >= ranks)
    throw lockstep::InvalidArgument(
        fmt::format("--inject: there is no rank {}; the ranks are 0 to {}", rank_, ranks - 1));
}

void Injection::set(std::string_view key, std::string_view value, std::string_view text) {
  const bool has_time = key == "ms" && kind_ == Kind::kDelay;
  const bool is_again =
      (key == "rank" && rank_ >= 0) || (key == "step" && step_ > 0) || (has_time && milliseconds_ > 0);
  if (is_again) refuse(text, fmt::format("{} is given twice", key));
  if (key == "rank")
    rank_ = static_cast<int>(to_number(key, value, 0, 1'000'000, text));
  else if (key == "step")
    step_ = to_number(key, value, 1, 1'000'000'000'000, text);
  else if (has_time)
    milliseconds_ = to_number(key, value, 1, kLongestDelay, text);
  else
    refuse(text, fmt::format("this fault has no \"{}\"", key.substr(0, kQuoted)));
}

bool Injection::is_pending(std::int64_t steps) const {
  return kind_ != Kind::kNone && steps < step_ && !is_restarted();
}

bool Injection::is_due(std::int64_t step, const lockstep::parallel::ProcessGroup& group) const {
  return kind_ != Kind::kNone && step == step_ && group.rank() == rank_ && !is_restarted();
}

void Injection::before_step(std::int64_t step, lockstep::parallel::ProcessGroup& group) const {
  if (!is_due(step, group)) return;
  switch (kind_) {
    case Kind::kKill:
      raise(SIGKILL);
      break;
    case Kind::kStop:
      raise(SIGSTOP);
      break;
    case Kind::kDelay:
      sleep_unless_stopped(milliseconds_);
      break;
    case Kind::kDrop:
      throw DroppedOut();
    case Kind::kMismatch:
      group.all_reduce(lockstep::zeros({3}))->wait();
      break;
    default:
      break;
  }
}

void Injection::after_backward(std::int64_t step, const lockstep::parallel::ProcessGroup& group,
                               const lockstep::nn::Module& model) const {
  if (kind_ != Kind::kCorrupt || !is_due(step, group)) return;
  for (const lockstep::nn::Parameter& parameter : model.parameters()) {
    const lockstep::Tensor grad = parameter->grad();
    if (!grad.defined()) continue;
    grad.add_(1);
    return;
  }
}

}  // namespace samples
