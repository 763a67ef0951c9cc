// PowerSGD: gradients as products of two thin matrices. Operations are in the order of PyTorch's powerSGD_hook.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/replicated/comm_hooks.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// A compressed gradient, and the offsets of its factors.
struct Matrix {
  std::size_t gradient;
  std::int64_t n, m, rank;
  std::int64_t p_at, q_at;  // offsets of P in `first` and of Q in `second`
  Tensor error = {};        // (n, m): the error of the last step; while a step runs, its input
};

// A gradient without compression, and the offset of its copy in `first`.
struct Plain {
  std::size_t gradient;
  std::int64_t at;
};

Tensor part(const Tensor& buffer, std::int64_t at, std::int64_t rows, std::int64_t columns) {
  return raw::view(raw::slice(buffer, 0, at, at + rows * columns, 1), {rows, columns});
}

// Returns a number in [-1, 1) for each seed (splitmix64).
double random_number(std::uint64_t seed) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

using Column = std::vector<double>;

double dot(const Column& a, const Column& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Makes the columns orthonormal by Gram-Schmidt, subtracting each projection twice, because once leaves rounding
// errors. Columns of length zero stay zero.
void make_orthonormal(std::vector<Column>& columns, double epsilon) {
  for (std::size_t c = 0; c < columns.size(); ++c) {
    for (std::size_t k = 0; k < 2 * c; ++k) {
      const Column& other = columns[k % c];
      const double along = dot(columns[c], other);
      for (std::size_t i = 0; i < other.size(); ++i) columns[c][i] -= along * other[i];
    }
    const double length = std::sqrt(dot(columns[c], columns[c])) + epsilon;
    for (double& x : columns[c]) x = length > 0 ? x / length : 0;
  }
}

template <class T, class Change>
void change_columns_of(const Tensor& matrix, Change change) {
  const auto rows = static_cast<std::size_t>(matrix.size(0)), count = static_cast<std::size_t>(matrix.size(1));
  T* const data = static_cast<T*>(matrix.raw_data());
  std::vector<Column> columns(count, Column(rows));
  for (std::size_t i = 0; i < rows * count; ++i) columns[i % count][i / count] = data[i];
  change(columns);
  for (std::size_t i = 0; i < rows * count; ++i) data[i] = static_cast<T>(columns[i % count][i / count]);
}

template <class Change>
void change_columns(const Tensor& matrix, Change change) {
  matrix.dtype() == kFloat64 ? change_columns_of<double>(matrix, change) : change_columns_of<float>(matrix, change);
}

// Draws the columns that are zero or not finite, at first and after a gradient of zeros or NaN: a power iteration
// would not recover from them.
void draw_missing(std::vector<Column>& columns, std::uint64_t seed) {
  for (Column& column : columns) {
    const double length = dot(column, column);
    if (length > 0 && std::isfinite(length)) continue;
    for (double& x : column) x = random_number(seed++);
  }
}

// error -= sent. Errors that are not finite become zero, so that one bad step does not spoil all later ones.
template <class T>
void keep_difference(const Tensor& error, const Tensor& sent) {
  T* const to = static_cast<T*>(error.raw_data());
  const T* const from = static_cast<const T*>(sent.raw_data());
  for (std::int64_t i = 0; i < error.numel(); ++i) {
    const T left = to[i] - from[i];
    to[i] = std::isfinite(left) ? left : T(0);
  }
}

}  // namespace

// The state of one bucket between steps.
struct PowerSgdHook::Bucket {
  void plan(const GradBucket& bucket, const PowerSgdOptions& options);
  bool fits(const GradBucket& bucket) const;
  void allocate(const GradBucket& bucket, ProcessGroup& group);
  std::shared_ptr<Work> begin(const GradBucket& bucket, ProcessGroup& group, const PowerSgdOptions& options);
  std::shared_ptr<Work> project_back(ProcessGroup& group, const PowerSgdOptions& options);
  void decompress();

  Tensor matrix(const Matrix& of) const { return raw::view(gradients[of.gradient], {of.n, of.m}); }
  Tensor p(const Matrix& of) const { return part(first, of.p_at, of.n, of.rank); }
  Tensor copy_of(const Plain& of) const {
    const Tensor& gradient = gradients[of.gradient];
    return raw::view(raw::slice(first, 0, of.at, of.at + gradient.numel(), 1), gradient.shape());
  }
  Tensor q(const Matrix& of) const { return part(second, of.q_at, of.m, of.rank); }

  std::vector<Shape> shapes;  // of the planned gradients
  std::vector<Matrix> matrices;
  std::vector<Plain> plains;
  std::int64_t first_size = 0, second_size = 0;
  std::int64_t steps = 0;
  std::vector<Tensor> gradients;  // of the current step
  Tensor first, second;           // sent: copies of uncompressed gradients and all P; all Q
};

namespace {

// The reduction of P, then of Q. `wait` starts the reduction of Q, so that operations follow the order of buckets.
class Exchange final : public Work {
 public:
  Exchange(std::shared_ptr<Work> first, Callback<std::shared_ptr<Work>()> second, Callback<void()> finish)
      : work_(std::move(first)), second_(std::move(second)), finish_(std::move(finish)) {}
  void wait() override {
    if (done_) return;
    work_->wait();
    if (second_) {
      work_ = second_();
      second_ = {};
      work_->wait();
    }
    finish_();
    done_ = true;
  }
  bool is_completed() override { return done_; }
  bool is_known_complete() override { return done_; }

 private:
  std::shared_ptr<Work> work_;
  Callback<std::shared_ptr<Work>()> second_;
  Callback<void()> finish_;
  bool done_ = false;
};

}  // namespace

void PowerSgdHook::Bucket::plan(const GradBucket& bucket, const PowerSgdOptions& options) {
  for (std::size_t g = 0; g < bucket.gradients.size(); ++g) {
    const Tensor& gradient = bucket.gradients[g];
    shapes.push_back(gradient.shape());
    const std::int64_t n = gradient.dim() > 1 ? gradient.size(0) : 0, m = n > 0 ? gradient.numel() / n : 0;
    const double sent = static_cast<double>(n + m) * static_cast<double>(options.rank) * options.min_compression_rate;
    if (sent < static_cast<double>(n) * static_cast<double>(m)) {
      const std::int64_t rank = std::min({n, m, options.rank});
      matrices.push_back({.gradient = g, .n = n, .m = m, .rank = rank, .p_at = first_size, .q_at = second_size});
      first_size += n * rank;
      second_size += m * rank;
    } else {
      plains.push_back({.gradient = g, .at = first_size});
      first_size += gradient.numel();
    }
  }
}

bool PowerSgdHook::Bucket::fits(const GradBucket& bucket) const {
  return std::ranges::equal(shapes, bucket.gradients, {}, {}, [](const Tensor& each) { return each.shape(); }) &&
         (!first.defined() || first.dtype() == bucket.buffer.dtype());
}

void PowerSgdHook::Bucket::allocate(const GradBucket& bucket, ProcessGroup& group) {
  const Tensor& like = bucket.buffer;
  first = group.empty({first_size}, like.dtype(), like.device());
  second = group.empty({second_size}, like.dtype(), like.device());
  raw::fill(second, 0);  // draw_missing draws columns of length zero
}

// Computes P = M Q for every matrix, copies the other gradients, and starts their reduction.
std::shared_ptr<Work> PowerSgdHook::Bucket::begin(const GradBucket& bucket, ProcessGroup& group,
                                                  const PowerSgdOptions& options) {
  if (!first.defined()) allocate(bucket, group);
  gradients = bucket.gradients;
  for (const Plain& each : plains) raw::copy(gradients[each.gradient], copy_of(each));
  if (!options.warm_start) raw::fill(second, 0);
  for (std::size_t k = 0; k < matrices.size(); ++k) {
    Matrix& each = matrices[k];
    const Tensor m = matrix(each);
    if (options.use_error_feedback) {
      if (each.error.defined()) raw::add_(m, each.error);
      each.error = raw::clone(m);
    }
    // Different random numbers for each step, bucket and matrix.
    const std::uint64_t number = (static_cast<std::uint64_t>(steps) << 16) + (bucket.index << 8) + k;
    const std::uint64_t seed = options.seed + (number << 24);
    change_columns(q(each), [&](std::vector<Column>& columns) {
      draw_missing(columns, seed);
      make_orthonormal(columns, options.orthogonalization_epsilon);
    });
    raw::copy(raw::matmul(m, q(each)), p(each));
  }
  return group.all_reduce(first, ReduceOp::kAvg);
}

// Makes P orthonormal, with the same result on all ranks, computes Q = M' P and starts its reduction.
std::shared_ptr<Work> PowerSgdHook::Bucket::project_back(ProcessGroup& group, const PowerSgdOptions& options) {
  for (const Matrix& each : matrices) {
    change_columns(p(each),
                   [&](std::vector<Column>& columns) { make_orthonormal(columns, options.orthogonalization_epsilon); });
    raw::copy(raw::matmul(raw::transpose(matrix(each), 0, 1), p(each)), q(each));
  }
  return group.all_reduce(second, ReduceOp::kAvg);
}

// Sets the gradients to P Q' and the errors to the difference.
void PowerSgdHook::Bucket::decompress() {
  for (const Plain& each : plains) raw::copy(copy_of(each), gradients[each.gradient]);
  for (const Matrix& each : matrices) {
    const Tensor m = matrix(each);
    raw::copy(raw::matmul(p(each), raw::transpose(q(each), 0, 1)), m);
    if (!each.error.defined()) continue;
    m.dtype() == kFloat64 ? keep_difference<double>(each.error, m) : keep_difference<float>(each.error, m);
  }
}

PowerSgdHook::PowerSgdHook(const PowerSgdOptions& options) : options_(options) {
  LOCKSTEP_CHECK(options.rank >= 1, "PowerSgdHook: rank is {}, expected 1 or more", options.rank);
  LOCKSTEP_CHECK(options.start_iteration >= 0, "PowerSgdHook: start_iteration is {}, expected 0 or more",
                 options.start_iteration);
  LOCKSTEP_CHECK(
      options.min_compression_rate > 0 && options.orthogonalization_epsilon >= 0,
      "PowerSgdHook: min_compression_rate is {} and orthogonalization_epsilon {}, expected more than 0, and 0 or more",
      options.min_compression_rate, options.orthogonalization_epsilon);
}

PowerSgdHook::~PowerSgdHook() = default;

std::shared_ptr<Work> PowerSgdHook::start(const GradBucket& bucket, ProcessGroup& group) {
  LOCKSTEP_CHECK(bucket.buffer.device().is_cpu(),
                 "PowerSgdHook: gradients are on {}, expected on the CPU; use bf16_compress_hook()",
                 bucket.buffer.device().to_string());
  if (bucket.index >= buckets_.size()) buckets_.resize(bucket.index + 1);
  std::shared_ptr<Bucket>& state = buckets_[bucket.index];
  if (!state || !state->fits(bucket)) {
    const std::int64_t steps = state ? state->steps : 0;
    state = std::make_shared<Bucket>();
    state->plan(bucket, options_);
    state->steps = steps;
  }
  if (state->steps++ < options_.start_iteration || state->matrices.empty())
    return group.all_reduce(bucket.buffer, ReduceOp::kAvg);
  return std::make_shared<Exchange>(
      state->begin(bucket, group, options_),
      [state, &group, options = options_] { return state->project_back(group, options); },
      [state] { state->decompress(); });
}

std::string PowerSgdHook::describe() const {
  return fmt::format("PowerSgdHook rank {} start {} rate {} error_feedback {} warm_start {} epsilon {} seed {}",
                     options_.rank, options_.start_iteration, options_.min_compression_rate,
                     options_.use_error_feedback, options_.warm_start, options_.orthogonalization_epsilon,
                     options_.seed);
}

}  // namespace lockstep::parallel
