#include "lockstep/tensor/random.h"

#include <atomic>
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

Position reserve_in_frames(Stream stream, std::uint64_t blocks) {
  DrawFrame* source = innermost;
  while (source && !source->repeated) source = source->outer;
  if (source)
    LOCKSTEP_CHECK(source->next < source->repeated->size() && (*source->repeated)[source->next].stream == stream &&
                       (*source->repeated)[source->next].blocks == blocks,
                   "the function draws other random numbers when it is repeated; it must compute the same, so "
                   "train() or eval() must not change in between");
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

bool is_repeating() {
  const DrawFrame* frame = innermost;
  while (frame && !frame->repeated) frame = frame->outer;
  return frame != nullptr;
}

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

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options) {
  LOCKSTEP_CHECK(low < high, "randint: no integer in [{}, {})", low, high);
  // 64 bits per element; high * (range / 2^64) is uniform to one part in 2^64 / range.
  Tensor values = empty(shape, {.dtype = kInt64});
  const std::int64_t count = values.numel();
  Tensor bits = empty({count * 2}, {.dtype = kInt32});
  const auto blocks = static_cast<std::uint64_t>((count * 2 + 3) / 4);
  auto* words = static_cast<std::uint32_t*>(bits.raw_data());
  if (count > 0) kernels({}).random_bits(words, count * 2, random::reserve(random::Stream::kUser, blocks));
  const auto range = static_cast<Wide>(static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t word = std::uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
    values.data<std::int64_t>()[i] =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + static_cast<std::uint64_t>(range * word >> 64));
  }
  return to(to(values, options.dtype.value_or(kInt64)), options.device.value_or(Device()));
}

Tensor randperm(std::int64_t n, const TensorOptions& options) {
  LOCKSTEP_CHECK(n >= 0, "randperm: n is {}", n);
  Tensor values = arange(0, n, 1);
  Tensor bits = empty({n * 2}, {.dtype = kInt32});
  auto* words = static_cast<std::uint32_t*>(bits.raw_data());
  if (n > 0)
    kernels({}).random_bits(words, n * 2,
                            random::reserve(random::Stream::kPermutation, static_cast<std::uint64_t>((n * 2 + 3) / 4)));
  auto* permutation = values.data<std::int64_t>();
  for (std::int64_t i = 0; i + 1 < n; ++i) {  // Fisher-Yates
    const std::uint64_t word = std::uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
    const auto left = static_cast<Wide>(n - i);
    std::swap(permutation[i], permutation[i + static_cast<std::int64_t>(left * word >> 64)]);
  }
  return to(to(values, options.dtype.value_or(kInt64)), options.device.value_or(Device()));
}

}  // namespace raw
}  // namespace lockstep
