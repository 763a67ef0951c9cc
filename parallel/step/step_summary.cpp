#include "lockstep/parallel/step/step_summary_internal.h"

#include <cmath>

namespace lockstep::parallel {
namespace {

// Elements may be f32, with 24 bits: numbers are stored in digits so small that their sum over all ranks rounds to the
// right integer, even after a multiplication and division by 1 / n.
enum Element : std::int64_t { kMicroBatches, kSamplesLow, kSamplesHigh, kLoss, kFlags };
constexpr std::int64_t kSamplesDigit = 4096;
constexpr int kJoined = 2048;  // kFlags: joined ranks times kJoined, plus ranks that have requested a stop

template <class T>
T& element(const Tensor& memory, std::int64_t at) {
  return static_cast<T*>(memory.raw_data())[at];
}

}  // namespace

void set_element(const Tensor& metadata, std::int64_t at, double value) {
  if (metadata.dtype() == kFloat64)
    element<double>(metadata, at) = value;
  else
    element<float>(metadata, at) = static_cast<float>(value);
}

double get_element(const Tensor& metadata, std::int64_t at) {
  return metadata.dtype() == kFloat64 ? element<double>(metadata, at) : element<float>(metadata, at);
}

void StepSummary::write(const Tensor& metadata) const {
  set_element(metadata, kMicroBatches, static_cast<double>(micro_batches));
  set_element(metadata, kSamplesLow, static_cast<double>(samples % kSamplesDigit));
  set_element(metadata, kSamplesHigh, static_cast<double>(samples / kSamplesDigit));
  set_element(metadata, kLoss, loss);
  set_element(metadata, kFlags, stop + kJoined * joined);
}

StepSummary StepSummary::read(const Tensor& metadata, double scale) {
  const auto number = [&](Element at) { return std::llround(get_element(metadata, at) / scale); };
  const auto flags = static_cast<int>(number(kFlags));
  return {.micro_batches = number(kMicroBatches),
          .samples = number(kSamplesHigh) * kSamplesDigit + number(kSamplesLow),
          .loss = get_element(metadata, kLoss),
          .stop = flags % kJoined,
          .joined = flags / kJoined};
}

}  // namespace lockstep::parallel
