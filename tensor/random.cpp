#include "lockstep/tensor/random.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/tensor/capture_internal.h"
#include "lockstep/tensor/random_draws_internal.h"
#include "lockstep/tensor/random_ops_internal.h"
#include "lockstep/tensor/wrappers_internal.h"

namespace lockstep {

namespace random {

namespace {
constinit std::atomic<std::uint64_t> seed{0};
constinit std::atomic<std::uint64_t> counters[kMaxMicroBatches][kStreamCount]{};
constinit thread_local int micro_batch = 0;
constinit thread_local DrawFrame* innermost = nullptr;

Position reserve_new(Stream stream, std::uint64_t blocks) {
  const auto purpose = static_cast<std::uint64_t>(stream);
  const std::uint64_t offset = counters[micro_batch][purpose].fetch_add(blocks, std::memory_order_relaxed);
  return {seed.load(std::memory_order_relaxed), static_cast<std::uint64_t>(micro_batch) << 8 | purpose, offset};
}

// The innermost frame that repeats draws, or null.
DrawFrame* repeating_frame() {
  DrawFrame* frame = innermost;
  while (frame && !frame->repeated) frame = frame->outer;
  return frame;
}

Position reserve_in_frames(Stream stream, std::uint64_t blocks) {
  DrawFrame* const source = repeating_frame();
  if (source)
    LOCKSTEP_CHECK(source->next < source->repeated->size() && (*source->repeated)[source->next].stream == stream &&
                       (*source->repeated)[source->next].blocks == blocks,
                   "the function draws other random numbers when run again; make it deterministic, and do not call "
                   "train() or eval() between forward and backward");
  const Draw draw = source ? (*source->repeated)[source->next++] : Draw{stream, blocks, reserve_new(stream, blocks)};
  for (DrawFrame* frame = innermost; frame != source; frame = frame->outer) {
    if (frame->recorded) frame->recorded->push_back(draw);
  }
  return draw.position;
}
}  // namespace

DrawFrame::DrawFrame(std::vector<Draw>* recorded, const std::vector<Draw>* repeated)
    : recorded(recorded), repeated(repeated), outer(std::exchange(innermost, this)) {}
DrawFrame::~DrawFrame() { innermost = outer; }

bool is_repeating() { return repeating_frame() != nullptr; }

bool has_draw_frame() { return innermost != nullptr; }

Position reserve(Stream stream, std::uint64_t blocks) {
  if (innermost) [[unlikely]]
    return reserve_in_frames(stream, blocks);
  return reserve_new(stream, blocks);
}

std::vector<std::uint64_t> state() {
  std::vector<std::uint64_t> out{seed.load()};
  for (std::uint64_t s = 0; s < kMaxMicroBatches; ++s) {
    for (std::uint64_t stream = 0; stream < kStreamCount; ++stream) {
      const std::uint64_t offset = counters[s][stream].load();
      if (offset) out.insert(out.end(), {s, stream, offset});
    }
  }
  return out;
}

void set_state(std::span<const std::uint64_t> state) {
  LOCKSTEP_CHECK(state.size() % 3 == 1, "random::set_state: {} numbers are not a state; pass a result of random::state",
                 state.size());
  for (std::size_t i = 1; i < state.size(); i += 3) {
    LOCKSTEP_CHECK(state[i] < kMaxMicroBatches && state[i + 1] < kStreamCount,
                   "random::set_state: micro-batch {}, stream {} do not exist", state[i], state[i + 1]);
  }
  manual_seed(state[0]);
  for (std::size_t i = 1; i < state.size(); i += 3) counters[state[i]][state[i + 1]].store(state[i + 2]);
}

int current_micro_batch() { return micro_batch; }

MicroBatchGuard::MicroBatchGuard(int current) : previous_(micro_batch) {
  LOCKSTEP_CHECK(current >= 0 && current < kMaxMicroBatches, "micro-batch {} is outside [0, {})", current,
                 kMaxMicroBatches);
  micro_batch = current;
}
MicroBatchGuard::~MicroBatchGuard() { micro_batch = previous_; }

}  // namespace random

void manual_seed(std::uint64_t seed) {
  random::seed.store(seed);
  for (auto& streams : random::counters) {
    for (auto& counter : streams) counter.store(0);
  }
}

namespace raw {

__extension__ using Wide = unsigned __int128;

namespace {

Tensor float_tensor(const char* op, const Shape& shape, const TensorOptions& options) {
  Tensor out = empty(shape, options);
  require_float(op, out);
  return out;
}

// Reserves counter blocks for a draw on the device; each replay of a CUDA graph uses new blocks.
random::Position reserve(random::Stream stream, std::int64_t blocks, Device device) {
  const auto count = static_cast<std::uint64_t>(blocks);
  random::Position position = random::reserve(stream, count);
  capture::keep_on_device(position, device, [stream, count, micro_batch = random::current_micro_batch()] {
    const random::MicroBatchGuard guard(micro_batch);
    return random::reserve(stream, count);
  });
  return position;
}

// Reserves blocks for all elements of `out`: a block has four f32 or two f64.
random::Position reserve(const Tensor& out, random::Stream stream) {
  const std::int64_t each = out.dtype() == kFloat64 ? 2 : 4;
  return reserve(stream, (out.numel() + each - 1) / each, out.device());
}

}  // namespace

Tensor uniform(const Shape& shape, double low, double high, random::Stream stream, const TensorOptions& options) {
  Tensor out = float_tensor("rand", shape, options);
  if (out.numel() > 0)
    kernels(out.device()).uniform(out.raw_data(), out.numel(), out.dtype(), reserve(out, stream), low, high);
  return out;
}

Tensor normal(const Shape& shape, random::Stream stream, const TensorOptions& options) {
  Tensor out = float_tensor("randn", shape, options);
  if (out.numel() > 0) kernels(out.device()).normal(out.raw_data(), out.numel(), out.dtype(), reserve(out, stream));
  return out;
}

random::Position reserve_dropout(std::int64_t elements, Device device) {
  return reserve(random::Stream::kDropout, (elements + 3) / 4, device);
}

Tensor dropout_mask(const Shape& shape, double keep, const TensorOptions& options, const random::Position& position) {
  LOCKSTEP_CHECK(keep >= 0 && keep <= 1, "dropout: the probability to keep is {}, outside [0, 1]", keep);
  Tensor out = float_tensor("dropout", shape, options);
  if (out.numel() > 0) kernels(out.device()).dropout_mask(out.raw_data(), out.numel(), out.dtype(), position, keep);
  return out;
}

Tensor dropout_mask(const Shape& shape, double keep, const TensorOptions& options) {
  return dropout_mask(shape, keep, options, reserve_dropout(shape.numel(), options.device.value_or(Device())));
}

namespace {

// `count` numbers of 64 random bits each.
std::vector<std::uint64_t> random_words(std::int64_t count, random::Stream stream) {
  const auto size = static_cast<std::size_t>(count);
  std::vector<std::uint32_t> halves(2 * size);
  std::vector<std::uint64_t> words(size);
  if (count > 0) kernels({}).random_bits(halves.data(), 2 * count, random::reserve(stream, (2 * size + 3) / 4));
  for (std::size_t i = 0; i < size; ++i) words[i] = std::uint64_t{halves[2 * i]} << 32 | halves[2 * i + 1];
  return words;
}

}  // namespace

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options) {
  LOCKSTEP_CHECK(low < high, "randint: no integer in [{}, {})", low, high);
  // 64 bits per element; high * (range / 2^64) is uniform to one part in 2^64 / range.
  Tensor values = empty(shape, {.dtype = kInt64});
  const auto range = static_cast<Wide>(static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low));
  auto* value = static_cast<std::int64_t*>(values.raw_data());
  for (const std::uint64_t word : random_words(values.numel(), random::Stream::kUser))
    *value++ =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + static_cast<std::uint64_t>(range * word >> 64));
  return to(to(values, options.dtype.value_or(kInt64)), options.device.value_or(Device()));
}

Tensor randperm(std::int64_t n, const TensorOptions& options) {
  LOCKSTEP_CHECK(n >= 0, "randperm: n is {}", n);
  Tensor values = arange(0, n, 1);
  const std::vector<std::uint64_t> words = random_words(n, random::Stream::kPermutation);
  auto* permutation = values.data<std::int64_t>();
  for (std::int64_t i = 0; i + 1 < n; ++i) {  // Fisher-Yates
    const auto left = static_cast<Wide>(n - i);
    std::swap(permutation[i],
              permutation[i + static_cast<std::int64_t>(left * words[static_cast<std::size_t>(i)] >> 64)]);
  }
  return to(to(values, options.dtype.value_or(kInt64)), options.device.value_or(Device()));
}

namespace {

// Uniform in (0, 1), both ends excluded.
double unit(std::uint64_t word) { return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52; }

// Draws from the cumulative weights: the first class whose sum exceeds a uniform part of the total.
void draw_with_replacement(std::span<const double> weights, double total, std::span<const std::uint64_t> words,
                           std::int64_t* out) {
  std::vector<double> sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  for (const std::uint64_t word : words) {
    const double part = std::min(unit(word) * total, std::nextafter(total, 0.0));
    *out++ = std::ranges::upper_bound(sums, part) - sums.begin();
  }
}

// Draws one class after another, without those that were drawn before. Equal in distribution: the classes in the order
// of Exponential(1) / weight (Efraimidis and Spirakis, 2006).
void draw_without_replacement(std::span<const double> weights, double total, std::span<const std::uint64_t> words,
                              std::span<std::int64_t> out) {
  std::vector<std::pair<double, std::int64_t>> keys;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0)
      keys.emplace_back(-std::log(unit(words[i])) / (weights[i] / total), static_cast<std::int64_t>(i));
  }
  std::ranges::partial_sort(keys, keys.begin() + std::ssize(out));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = keys[i].second;
}

// The sum of the weights of row `row`. Throws unless `samples` classes can be drawn from them.
double checked_total(std::span<const double> weights, std::int64_t row, std::int64_t samples, bool replacement) {
  double total = 0;
  std::int64_t positive = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    LOCKSTEP_CHECK(weights[i] >= 0 && weights[i] <= std::numeric_limits<double>::max(),
                   "multinomial: the weight of class {} in row {} is {}, expected a finite number of at least 0", i,
                   row, weights[i]);
    total += weights[i];
    positive += weights[i] > 0;
  }
  LOCKSTEP_CHECK(total > 0 && total <= std::numeric_limits<double>::max(),
                 "multinomial: the weights of row {} add up to {}, expected a positive, finite number", row, total);
  LOCKSTEP_CHECK(replacement || samples <= positive,
                 "multinomial: {} samples without replacement from row {}, which has {} classes of positive weight; "
                 "request fewer, or pass replacement = true",
                 samples, row, positive);
  return total;
}

}  // namespace

Tensor multinomial(const Tensor& weights, std::int64_t samples, bool replacement) {
  LOCKSTEP_CHECK((weights.dim() == 1 || weights.dim() == 2) && weights.is_floating_point(),
                 "multinomial: the weights are {}, expected floating point and (classes) or (rows, classes)",
                 describe(weights));
  LOCKSTEP_CHECK(samples >= 1, "multinomial: {} samples were requested, expected at least 1", samples);
  const Tensor host = contiguous(to(to(weights, Device()), kFloat64));
  const auto classes = static_cast<std::size_t>(weights.size(-1)), count = static_cast<std::size_t>(samples);
  const std::int64_t rows = weights.dim() == 2 ? weights.size(0) : 1;
  Shape shape = weights.shape();
  shape[shape.size() - 1] = samples;
  Tensor out = empty(shape, {.dtype = kInt64});
  auto* drawn = static_cast<std::int64_t*>(out.raw_data());
  for (std::int64_t row = 0; row < rows; ++row, drawn += count) {
    const std::span<const double> row_weights(
        static_cast<const double*>(host.raw_data()) + static_cast<std::size_t>(row) * classes, classes);
    const double total = checked_total(row_weights, row, samples, replacement);
    const std::vector<std::uint64_t> words =
        random_words(replacement ? samples : weights.size(-1), random::Stream::kUser);
    if (replacement)
      draw_with_replacement(row_weights, total, words, drawn);
    else
      draw_without_replacement(row_weights, total, words, {drawn, count});
  }
  return to(out, weights.device());
}

}  // namespace raw
}  // namespace lockstep
