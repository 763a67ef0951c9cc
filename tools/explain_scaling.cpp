#include "tools/explain_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tools/explain.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

constexpr int kMostRanks = 4096;

// Parses "1..1024" (both ends and the powers of two between them) or "1,2,6".
std::vector<int> ranks_of(const std::string& text) {
  const auto fail = [&] {
    throw ls::InvalidArgument(fmt::format("--ranks is \"{}\", expected 1..1024, or 1,2,6: from 1 to {}, increasing",
                                          text.substr(0, 80), kMostRanks));
  };
  const auto number = [&](std::size_t begin, std::size_t end) {
    int value = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (error != std::errc() || stop != text.data() + end || value < 1 || value > kMostRanks) fail();
    return value;
  };
  std::vector<int> ranks;
  if (const auto dots = text.find(".."); dots != std::string::npos) {
    const int first = number(0, dots), last = number(dots + 2, text.size());
    ranks.push_back(first);
    for (int n = 1; n < last; n *= 2) {
      if (n > first) ranks.push_back(n);
    }
    if (last != first) ranks.push_back(last);
  } else {
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      ranks.push_back(number(begin, end));
      begin = end + 1;
    }
  }
  if (!std::is_sorted(ranks.begin(), ranks.end())) fail();
  return ranks;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }

std::string megabytes(double bytes) { return fmt::format("{:.3f}", bytes / 1e6); }

// The number of devices from which DDP remains faster than DP, in the range of the question.
std::string crossing(const Scaling& scaling) {
  int from = 0;
  for (auto step = scaling.steps.rbegin(); step != scaling.steps.rend() && step->ddp < step->dp; ++step)
    from = step->ranks;
  const int last = scaling.steps.back().ranks;
  if (from == 0)
    return fmt::format("DDP is not faster than DP on {} devices: it waits for its all-reduces' latencies.", last);
  const bool always = from == scaling.steps.front().ranks || from <= 2;
  if (always) return fmt::format("DDP is faster than DP for all numbers of devices from {} to {}.", from, last);
  return fmt::format("DDP is faster than DP from {} devices on, and DP with fewer.", from);
}

}  // namespace

double speed_up(const Scaling& scaling, double seconds, int ranks) {
  const double alone = scaling.profile.forward + scaling.profile.backward() + scaling.profile.optimizer;
  return (seconds > 0 ? alone / seconds : 1) * (scaling.question.fixed_batch ? 1 : ranks);
}

Scaling predict_scaling(const ScalingQuestion& question) {
  Scaling scaling{.question = question, .link = par::find_link(question.link), .profile = {}, .steps = {}};
  const std::vector<int> ranks = ranks_of(question.ranks);
  scaling.profile = question.profile.empty() ? measure_profile(question.model, question.batch, question.bucket_mb)
                                             : read_profile(question.profile);
  for (const int n : ranks)
    scaling.steps.push_back(par::predict_step(scaling.profile,
                                              {.link = scaling.link,
                                               .algorithm = question.algorithm,
                                               .overlap = !question.no_overlap,
                                               .fixed_batch = question.fixed_batch},
                                              n));
  return scaling;
}

std::string as_text(const Scaling& scaling) {
  const ScalingQuestion& question = scaling.question;
  const par::StepProfile& profile = scaling.profile;
  const std::string what =
      question.profile.empty()
          ? fmt::format("MLP {}, {} samples per device, measured on this machine", question.model, question.batch)
          : question.profile;
  std::string text = fmt::format(
      "{}\none device: forward {} ms, backward {} ms, optimizer {} ms; gradients P = {} MB in {} bucket{}\n"
      "link {}: {:.1f} us, {:.3f} GB/s; DDP's all-reduces by {}{}; {}\n\n",
      what, milliseconds(profile.forward), milliseconds(profile.backward()), milliseconds(profile.optimizer),
      megabytes(profile.parameter_bytes()), profile.buckets.size(), profile.buckets.size() == 1 ? "" : "s",
      question.link, scaling.link.latency * 1e6, scaling.link.bandwidth / 1e9, par::name(question.algorithm),
      question.no_overlap ? ", without overlap" : "",
      question.fixed_batch ? "one batch, divided among the devices" : "each device has a batch of its own");
  text += fmt::format("{:>7} | {:>12} {:>12} {:>12} {:>8} | {:>12} {:>12} {:>12} {:>8}\n", "devices", "DP step ms",
                      "exposed ms", "device 0 MB", "speed-up", "DDP step ms", "exposed ms", "rank MB", "speed-up");
  for (const par::StepPrediction& step : scaling.steps)
    text += fmt::format("{:>7} | {:>12} {:>12} {:>12} {:>8.2f} | {:>12} {:>12} {:>12} {:>8.2f}\n", step.ranks,
                        milliseconds(step.dp), milliseconds(step.dp_exposed), megabytes(step.dp_device_bytes),
                        speed_up(scaling, step.dp, step.ranks), milliseconds(step.ddp), milliseconds(step.ddp_exposed),
                        megabytes(step.ddp_rank_bytes), speed_up(scaling, step.ddp, step.ranks));
  return text + fmt::format("\n{}\nThrough device 0: 2 (n-1) P, inputs and outputs. Sent by a rank: {}.\n",
                            crossing(scaling), bytes_formula(question.algorithm, 2));
}
