#include "lockstep/tensor/random/random.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"
#include "lockstep/tensor/random/random_draws_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep {

namespace random {

namespace {
constinit thread_local int micro_batch = 0;
constinit thread_local const SiteGuard* innermost_site = nullptr;
constinit thread_local DrawFrame* innermost = nullptr;
constinit thread_local SliceContext* slices = nullptr;

// Numbers of calls, by place. The key is site << kMicroBatchBits | micro-batch.
constexpr int kMicroBatchBits = 12, kHighCallBits = 64 - kSiteBits - kMicroBatchBits, kBlockBits = 36;
constexpr int kLowCallBits = 64 - kBlockBits;
static_assert(kMaxMicroBatches <= 1 << kMicroBatchBits);

}  // namespace

struct RankState {
  std::mutex mutex;
  std::atomic<std::uint64_t> seed{0};
  std::unordered_map<std::uint64_t, std::uint64_t> calls;
  std::atomic<int> groups{0};  // of a rank that is a thread
};

namespace {
constinit thread_local std::shared_ptr<RankState> own_state;

RankState& of_process() {
  static RankState instance;
  return instance;
}
RankState& current() { return own_state ? *own_state : of_process(); }

std::uint64_t key(const Place& place) { return place.site << kMicroBatchBits | place.micro_batch; }

std::uint64_t count_call(const Place& place) {
  RankState& rank = current();
  const std::lock_guard lock(rank.mutex);
  return rank.calls[key(place)]++;
}

Position position_of(const Place& place, std::uint64_t call) {
  return {current().seed.load(std::memory_order_relaxed), key(place) << kHighCallBits | call >> kLowCallBits,
          call << kBlockBits};
}

// The innermost frame that repeats draws, or null.
DrawFrame* repeating_frame() {
  DrawFrame* frame = innermost;
  while (frame && !frame->repeated) frame = frame->outer;
  return frame;
}
}  // namespace

SiteGuard::SiteGuard(const void* module, FindSite find_site, Describe describe)
    : module_(module), find_site_(find_site), describe_(describe), outer_(std::exchange(innermost_site, this)) {}
SiteGuard::~SiteGuard() { innermost_site = outer_; }

const SiteGuard* innermost_site_guard() { return innermost_site; }
SiteContext::SiteContext(const SiteGuard* guard) : previous_(std::exchange(innermost_site, guard)) {}
SiteContext::~SiteContext() { innermost_site = previous_; }

std::uint64_t SiteGuard::site() const {
  const SiteGuard* called = this;
  while (called->outer_) called = called->outer_;
  return find_site_(called->module_, module_);
}

std::string current_module() { return innermost_site ? innermost_site->description() : ""; }

Place current_place() {
  const std::uint64_t site = innermost_site ? innermost_site->site() : kUserSite;
  return {site, static_cast<std::uint64_t>(micro_batch)};
}

Position next_call(const Place& place, std::uint64_t blocks) {
  LOCKSTEP_CHECK(blocks <= std::uint64_t{1} << kBlockBits,
                 "a random tensor needs {} blocks of four numbers, more than 2^{}; draw it in parts", blocks,
                 kBlockBits);
  return position_of(place, count_call(place));
}

Position draw(const Place& place, std::uint64_t blocks) {
  if (!innermost) [[likely]]
    return next_call(place, blocks);
  DrawFrame* const source = repeating_frame();
  if (source)
    LOCKSTEP_CHECK(source->next < source->repeated->size() && (*source->repeated)[source->next].blocks == blocks,
                   "the function draws other random numbers when run again; make it deterministic, and do not call "
                   "train() or eval() between forward and backward");
  const Draw draw = source ? (*source->repeated)[source->next++] : Draw{blocks, next_call(place, blocks)};
  for (DrawFrame* frame = innermost; frame != source; frame = frame->outer) {
    if (frame->recorded) frame->recorded->push_back(draw);
  }
  return draw.position;
}

SliceContext* slice_context() { return slices; }

void refuse_in_slice(const char* op, const char* fix) {
  LOCKSTEP_CHECK(!slices || !slices->is_in_slice,
                 "{}: runs in a SequenceParallel module with parameters, which runs once for each slice of this rank, "
                 "so that the numbers would depend on the ranks; {}",
                 op, fix);
}

SliceContextGuard::SliceContextGuard(SliceContext* context) : previous_(std::exchange(slices, context)) {}
SliceContextGuard::~SliceContextGuard() { slices = previous_; }

DrawFrame::DrawFrame(std::vector<Draw>* recorded, const std::vector<Draw>* repeated)
    : recorded(recorded), repeated(repeated), outer(std::exchange(innermost, this)) {}
DrawFrame::~DrawFrame() { innermost = outer; }

bool is_repeating() { return repeating_frame() != nullptr; }

bool has_draw_frame() { return innermost != nullptr; }

namespace {
// Ends the rank of the thread that has made it.
class RankEnd {
 public:
  explicit RankEnd(std::shared_ptr<RankState> state) : state_(std::move(state)) { ++state_->groups; }
  ~RankEnd() {
    if (--state_->groups == 0 && own_state == state_) own_state.reset();
  }
  RankEnd(const RankEnd&) = delete;
  RankEnd& operator=(const RankEnd&) = delete;

 private:
  std::shared_ptr<RankState> state_;
};
}  // namespace

std::shared_ptr<void> become_rank() {
  if (!own_state) {
    auto own = std::make_shared<RankState>();
    const std::lock_guard lock(of_process().mutex);
    own->seed = of_process().seed.load();
    own->calls = of_process().calls;
    own_state = std::move(own);
  }
  return std::make_shared<RankEnd>(own_state);
}

std::shared_ptr<RankState> rank_state() { return own_state; }

RankStateGuard::RankStateGuard(std::shared_ptr<RankState> state)
    : previous_(std::exchange(own_state, std::move(state))) {}
RankStateGuard::~RankStateGuard() { own_state = std::move(previous_); }

std::uint64_t seed() { return current().seed.load(); }

std::vector<std::uint64_t> state() {
  RankState& rank = current();
  const std::lock_guard lock(rank.mutex);
  std::vector<std::uint64_t> out{kStateFormat, seed()};
  const std::map<std::uint64_t, std::uint64_t> in_order(rank.calls.begin(), rank.calls.end());
  for (const auto& [place, number] : in_order)
    out.insert(out.end(), {place >> kMicroBatchBits, place & ((1u << kMicroBatchBits) - 1), number});
  return out;
}

void check_state(std::span<const std::uint64_t> state) {
  LOCKSTEP_CHECK(state.size() % 3 != 1,
                 "random::set_state: this is a state of format 1, from before random numbers followed from the module "
                 "that draws; runs cannot continue from it with the same numbers: call manual_seed");
  LOCKSTEP_CHECK(state.size() % 3 == 2 && state[0] == kStateFormat,
                 "random::set_state: {} numbers are not a state; pass a result of random::state", state.size());
  for (std::size_t i = 2; i < state.size(); i += 3)
    LOCKSTEP_CHECK(state[i] >> kSiteBits == 0 && state[i + 1] < kMaxMicroBatches,
                   "random::set_state: site {}, micro-batch {} do not exist", state[i], state[i + 1]);
}

void set_state(std::span<const std::uint64_t> state) {
  check_state(state);
  std::unordered_map<std::uint64_t, std::uint64_t> numbers;
  for (std::size_t i = 2; i < state.size(); i += 3) numbers[key({state[i], state[i + 1]})] = state[i + 2];
  RankState& rank = current();
  const std::lock_guard lock(rank.mutex);
  rank.seed.store(state[1]);
  rank.calls = std::move(numbers);
}

int current_micro_batch() { return micro_batch; }

MicroBatchGuard::MicroBatchGuard(int current) : previous_(micro_batch) {
  LOCKSTEP_CHECK(current >= 0 && current < kMaxMicroBatches, "micro-batch {} is outside [0, {})", current,
                 kMaxMicroBatches);
  micro_batch = current;
}
MicroBatchGuard::~MicroBatchGuard() { micro_batch = previous_; }

}  // namespace random

void manual_seed(std::uint64_t seed) { random::set_state(std::vector<std::uint64_t>{random::kStateFormat, seed}); }

namespace raw {

__extension__ using Wide = unsigned __int128;

namespace {

// f16 and bf16 numbers are drawn in f32, into the result of float_tensor, and rounded to the dtype of the options.
Tensor float_tensor(const char* op, const Shape& shape, TensorOptions options) {
  if (options.dtype && is_half(*options.dtype)) options.dtype = kFloat32;
  Tensor out = empty(shape, options);
  require_float(op, out);
  return out;
}
Tensor rounded(const Tensor& drawn, const TensorOptions& options) {
  return to(drawn, options.dtype.value_or(drawn.dtype()));
}

// Elements of one counter block.
std::int64_t block_elements(DType dtype) { return dtype == kFloat64 ? 2 : 4; }

// Counts a call on the device; each replay of a CUDA graph is a call of its own.
random::Position next_call(std::uint64_t blocks, Device device, const random::BlockPart& part = {}) {
  const random::Place place = random::current_place();
  const auto of_part = [part](random::Position position) {
    position.part = part;
    return position;
  };
  random::Position position = of_part(random::draw(place, blocks));
  capture::keep_on_device(position, device, [=] { return of_part(random::next_call(place, blocks)); });
  return position;
}

random::Position next_call(const Tensor& out) { return next_call(blocks_of(out.numel(), out.dtype()), out.device()); }

// Draws elements first, first + 1, ... into `out`, with fill(pointer, count, position), which begins at a block.
template <class Fill>
Tensor draw(Tensor out, random::Position position, std::int64_t first, const Fill& fill) {
  const std::int64_t each = block_elements(out.dtype()), skipped = first % each;
  if (out.numel() == 0) return out;
  position.offset += static_cast<std::uint64_t>(first / each);
  if (skipped == 0) {
    fill(out.raw_data(), out.numel(), position);
    return out;
  }
  const Tensor blocks = empty({skipped + out.numel()}, out.options());
  fill(blocks.raw_data(), blocks.numel(), position);
  copy(reshape(slice(blocks, 0, skipped, blocks.numel(), 1), out.shape()), out);
  return out;
}

Tensor draw_uniform(Tensor out, const random::Position& position, std::int64_t first, double low, double high) {
  const auto fill = [&, dtype = out.dtype(), device = out.device()](void* to, std::int64_t count,
                                                                    const random::Position& from) {
    kernels(device).uniform(to, count, dtype, from, low, high);
  };
  return draw(std::move(out), position, first, fill);
}

Tensor draw_normal(Tensor out, const random::Position& position, std::int64_t first) {
  const auto fill = [dtype = out.dtype(), device = out.device()](void* to, std::int64_t count,
                                                                 const random::Position& from) {
    kernels(device).normal(to, count, dtype, from);
  };
  return draw(std::move(out), position, first, fill);
}

}  // namespace

std::uint64_t blocks_of(std::int64_t elements, DType dtype) {
  const std::int64_t each = block_elements(dtype);
  return static_cast<std::uint64_t>((elements + each - 1) / each);
}

Tensor uniform(const Shape& shape, double low, double high, const TensorOptions& options) {
  const Tensor out = float_tensor("rand", shape, options);
  return rounded(out.numel() > 0 ? draw_uniform(out, next_call(out), 0, low, high) : out, options);
}
Tensor uniform_at(const random::Position& position, std::int64_t first, const Shape& shape, double low, double high,
                  const TensorOptions& options) {
  return rounded(draw_uniform(float_tensor("rand", shape, options), position, first, low, high), options);
}

Tensor normal(const Shape& shape, const TensorOptions& options) {
  const Tensor out = float_tensor("randn", shape, options);
  return rounded(out.numel() > 0 ? draw_normal(out, next_call(out), 0) : out, options);
}
Tensor normal_at(const random::Position& position, std::int64_t first, const Shape& shape,
                 const TensorOptions& options) {
  return rounded(draw_normal(float_tensor("randn", shape, options), position, first), options);
}

random::Position next_dropout(std::int64_t elements, Device device, const random::BlockPart& part) {
  return next_call(blocks_of(elements, kFloat32), device, part);
}

Tensor dropout_mask(const Shape& shape, double keep, const TensorOptions& options, const random::Position& position) {
  LOCKSTEP_CHECK(keep >= 0 && keep <= 1, "dropout: the probability to keep is {}, outside [0, 1]", keep);
  const Tensor out = float_tensor("dropout", shape, options);
  if (out.numel() > 0) kernels(out.device()).dropout_mask(out.raw_data(), out.numel(), out.dtype(), position, keep);
  return rounded(out, options);
}

namespace {

// Calls use(i, 64 random bits) for i from 0 to count - 1, in order.
template <class F>
void for_random_words(std::int64_t count, const F& use) {
  if (count == 0) return;
  constexpr std::int64_t kPart = 1 << 15;  // so that the words stay in the cache
  random::Position position = next_call(static_cast<std::uint64_t>((count + 1) / 2), Device());
  std::vector<std::uint32_t> halves(static_cast<std::size_t>(2 * std::min(count, kPart)));
  for (std::int64_t first = 0; first < count; first += kPart, position.offset += kPart / 2) {
    const std::int64_t part = std::min(count - first, kPart);
    const std::uint32_t* const half = halves.data();
    kernels({}).random_bits(halves.data(), 2 * part, position);
    for (std::int64_t i = 0; i < part; ++i) use(first + i, std::uint64_t{half[2 * i]} << 32 | half[2 * i + 1]);
  }
}

std::vector<std::uint64_t> random_words(std::int64_t count) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(count));
  for_random_words(count, [out = words.data()](std::int64_t i, std::uint64_t word) { out[i] = word; });
  return words;
}

}  // namespace

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options) {
  LOCKSTEP_CHECK(low < high, "randint: no integer in [{}, {})", low, high);
  // 64 bits per element; high * (range / 2^64) is uniform to one part in 2^64 / range.
  Tensor values = empty(shape, {.dtype = kInt64});
  const auto range = static_cast<Wide>(static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low));
  auto* const out = static_cast<std::int64_t*>(values.raw_data());
  for_random_words(values.numel(), [=](std::int64_t i, std::uint64_t word) {
    out[i] =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + static_cast<std::uint64_t>(range * word >> 64));
  });
  return to(to(values, options.dtype.value_or(kInt64)), options.device.value_or(Device()));
}

Tensor randperm(std::int64_t n, const TensorOptions& options) {
  LOCKSTEP_CHECK(n >= 0, "randperm: n is {}", n);
  Tensor values = arange(0, n, 1);
  auto* const permutation = values.data<std::int64_t>();
  for_random_words(n, [=](std::int64_t i, std::uint64_t word) {  // Fisher-Yates
    std::swap(permutation[i], permutation[i + static_cast<std::int64_t>(static_cast<Wide>(n - i) * word >> 64)]);
  });
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
    const std::vector<std::uint64_t> words = random_words(replacement ? samples : weights.size(-1));
    if (replacement)
      draw_with_replacement(row_weights, total, words, drawn);
    else
      draw_without_replacement(row_weights, total, words, {drawn, count});
  }
  return to(out, weights.device());
}

}  // namespace raw
}  // namespace lockstep
