/// \file
/// Communication hooks: how DistributedDataParallel averages a bucket of gradients over the ranks.
///
///     ddp.register_comm_hook(bf16_compress_hook());
///
/// Without a hook gradients are added up exactly, in canonical order. A hook gets each bucket as soon as this rank's
/// gradients stand in it, and may send less. What else travels with a bucket (loss, rows, used parameters, wishes to
/// stop) stays exact: it is added up apart, with one small operation a bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// A bucket on its way through a hook.
struct GradBucket {
  std::size_t index = 0;                ///< buckets come in this order, on all ranks
  bool is_last = false;                 ///< of the step
  Tensor buffer;                        ///< (elements): all gradients in a row, zeros between them
  std::vector<Tensor> gradients = {};   ///< views of it, with the parameters' shapes; f32 for f16 and bf16 parameters
  std::vector<std::string> names = {};  ///< of the parameters
};

/// What this rank's micro-batches add up to stands in `bucket.buffer`, not divided by anything; when the Work that
/// `start` returns is complete, the mean over the ranks has to stand there, the same on all of them. So `start` begins
/// the same collectives of `group`, in the same order, on all ranks. A Work's `wait` may begin more: buckets are
/// waited for in order. A parameter that this rank has not used counts as -0.0.
///
/// What it throws is the step's error; parameters stay as they are. One hook serves one DistributedDataParallel.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Begins the mean of one bucket.
  virtual std::shared_ptr<Work> start(const GradBucket& bucket, ProcessGroup& group) = 0;
  /// Kind and options in a line, at most 200 characters: all ranks have to register the same.
  virtual std::string describe() const = 0;
};

/// The plain mean. For equal weights, and a number of micro-batches a rank that is a power of two, the bits of no hook
/// at all.
std::shared_ptr<CommHook> allreduce_hook();
/// Gradients are rounded to f16 or bf16, added up in f32, divided, rounded once more, and widened: half the bytes of
/// f32. f16 has 11 digits and ends at 65504, bf16 has 8 and ends where f32 does.
std::shared_ptr<CommHook> fp16_compress_hook();
std::shared_ptr<CommHook> bf16_compress_hook();  ///< with bf16

struct PowerSgdOptions {
  std::int64_t rank = 1;                 ///< of the matrices that are sent: more is closer, and more bytes
  std::int64_t start_iteration = 1000;   ///< steps that are averaged as they are
  double min_compression_rate = 2;       ///< a gradient that would not shrink by more than that is sent as it is
  bool use_error_feedback = true;        ///< what a step has left out is added to the next one's gradients
  bool warm_start = true;                ///< begin with the factors of the step before
  double orthogonalization_epsilon = 0;  ///< added to each column's length
  std::uint64_t seed = 0;                ///< of the first factors
};

/// PowerSGD (Vogels, Karimireddy and Jaggi 2019): a gradient of two or more dimensions, as a matrix M of n = size(0)
/// rows and m columns, is replaced by P Q' with P (n, rank) and Q (m, rank). P = mean(M Q) over the ranks, made
/// orthonormal, then Q = mean(M' P). So (n + m) rank numbers travel instead of n m; all other gradients are averaged
/// as they are. Deterministic from the seed, and the same on all ranks, but (like any compression) not the same for
/// other numbers of ranks.
class PowerSgdHook final : public CommHook {
 public:
  /// Throws InvalidArgument for a rank below 1, a negative start_iteration, epsilon or rate.
  explicit PowerSgdHook(const PowerSgdOptions& options = {});
  ~PowerSgdHook() override;
  std::shared_ptr<Work> start(const GradBucket& bucket, ProcessGroup& group) override;
  std::string describe() const override;

 private:
  struct Bucket;
  PowerSgdOptions options_;
  std::vector<std::shared_ptr<Bucket>> buckets_;
};

}  // namespace lockstep::parallel
