// The step of one device: measured here, or read from a file.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/file_internal.h"
#include "lockstep/lockstep.h"
#include "tools/explain_scaling.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

constexpr std::size_t kLargestFile = 256 * 1024;  // enough for thousands of buckets
constexpr double kLargest = 1e15;                 // limit of all numbers, in microseconds or bytes
constexpr std::int64_t kLargestLayer = 16384;
constexpr int kMeasured = 15, kWarmUp = 3;

struct Mlp : ls::nn::Module {
  explicit Mlp(const std::vector<std::int64_t>& sizes) {
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i)
      layers.push_back(&add<ls::nn::Linear>("fc" + std::to_string(i + 1), sizes[i], sizes[i + 1]));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = x;
    for (std::size_t i = 0; i < layers.size(); ++i) y = i == 0 ? (*layers[i])(y) : (*layers[i])(ls::relu(y));
    return y;
  }
  std::vector<ls::nn::Linear*> layers;
};

// Parses "784x512x10".
std::vector<std::int64_t> sizes_of(const std::string& model) {
  std::vector<std::int64_t> sizes;
  const char *at = model.data(), *const end = at + model.size();
  while (at <= end) {
    std::int64_t size = 0;
    const auto [stop, error] = std::from_chars(at, end, size);
    const bool is_number = error == std::errc() && (stop == end || *stop == 'x') && size >= 1 && size <= kLargestLayer;
    if (!is_number)
      throw ls::InvalidArgument(fmt::format("--model is \"{}\", expected layer sizes from 1 to {}, like 784x512x10",
                                            model.substr(0, 80), kLargestLayer));
    sizes.push_back(size);
    at = stop + 1;
  }
  if (sizes.size() < 2)
    throw ls::InvalidArgument(fmt::format("--model is \"{}\", expected two sizes or more, like 784x512x10", model));
  return sizes;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// Uses a DistributedDataParallel of one rank, whose statistics tell when each bucket's gradients were complete.
par::StepProfile measure_profile(const std::string& model, std::int64_t batch, double bucket_mb) {
  const std::vector<std::int64_t> sizes = sizes_of(model);
  ls::manual_seed(0);
  Mlp mlp(sizes);
  const auto group = par::init_process_group(
      {.backend = "local", .world_size = 1, .rank = 0, .store = std::make_shared<par::InProcessStore>()});
  par::DistributedDataParallel ddp(mlp, group, {.bucket_cap_mb = bucket_mb});
  ls::optim::SGD optimizer(mlp.parameters(), {.lr = 1e-3});
  const ls::Tensor x = ls::randn({batch, sizes.front()}), y = ls::randn({batch, sizes.back()});
  const std::size_t buckets = ddp.stats().buckets.size();
  std::vector<double> forward, optimizing;
  std::vector<std::vector<double>> backward(buckets);
  for (int step = -kWarmUp; step < kMeasured; ++step) {
    optimizer.zero_grad();
    const double begun = seconds_now();
    const ls::Tensor error = ddp(x) - y, loss = ls::mean(error * error);
    const double lost = seconds_now();
    loss.backward();
    const double back = seconds_now();
    optimizer.step();
    const double end = seconds_now();
    if (step < 0) continue;
    forward.push_back(lost - begun);
    optimizing.push_back(end - back);
    const par::DistributedDataParallelStats stats = ddp.stats();
    const double before_first =
        std::max(0.0, back - lost - stats.buckets.back().ready);  // `ready` counts from the first gradient
    for (std::size_t b = 0; b < buckets; ++b) {
      const double from = b == 0 ? -before_first : stats.buckets[b - 1].ready;
      backward[b].push_back(std::max(0.0, stats.buckets[b].ready - from));
    }
  }
  par::StepProfile profile{.forward = median(forward), .buckets = {}, .optimizer = median(optimizing)};
  for (std::size_t b = 0; b < buckets; ++b)
    profile.buckets.push_back({static_cast<double>(ddp.stats().buckets[b].bytes), median(backward[b])});
  profile.input_bytes = static_cast<double>((x.numel() + y.numel()) * 4);
  profile.output_bytes = static_cast<double>(y.numel() * 4);
  return profile;
}

par::StepProfile read_profile(const std::string& path) {
  return parse_profile(ls::read_file(path, kLargestFile), path);
}

par::StepProfile parse_profile(std::span<const std::byte> text, const std::string& name) {
  const char* const first = reinterpret_cast<const char*>(text.data());
  const auto json = nlohmann::json::parse(first, first + text.size(), nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const nlohmann::json& from, const char* key) {
    const bool is_there = from.is_object() && from.contains(key) && from[key].is_number();
    const double value = is_there ? from[key].get<double>() : -1;
    if (!(value >= 0 && value < kLargest))
      throw ls::IoError(fmt::format("{}: \"{}\" is {}, expected a number from 0 to {:g}", name, key,
                                    is_there ? fmt::to_string(value) : "missing", kLargest));
    return value;
  };
  par::StepProfile profile{.forward = 1e-6 * number(json, "forward_us"),
                           .buckets = {},
                           .optimizer = 1e-6 * number(json, "optimizer_us"),
                           .input_bytes = number(json, "input_bytes"),
                           .output_bytes = number(json, "output_bytes")};
  if (!json.contains("buckets") || !json["buckets"].is_array() || json["buckets"].empty())
    throw ls::IoError(
        fmt::format("{}: no \"buckets\", expected a list of {{\"bytes\": ..., \"backward_us\": ...}}", name));
  for (const auto& bucket : json["buckets"])
    profile.buckets.push_back({number(bucket, "bytes"), 1e-6 * number(bucket, "backward_us")});
  return profile;
}

std::string profile_json(const par::StepProfile& profile) {
  std::string buckets;
  for (const auto& bucket : profile.buckets)
    buckets += fmt::format("{}\n  {{\"bytes\": {}, \"backward_us\": {:.3f}}}", buckets.empty() ? "" : ",", bucket.bytes,
                           bucket.backward * 1e6);
  return fmt::format(
      "{{\"forward_us\": {:.3f}, \"optimizer_us\": {:.3f}, \"input_bytes\": {}, \"output_bytes\": {}, "
      "\"buckets\": [{}\n]}}\n",
      profile.forward * 1e6, profile.optimizer * 1e6, profile.input_bytes, profile.output_bytes, buckets);
}
