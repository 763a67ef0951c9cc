/// \file
/// Communication hooks: how DistributedDataParallel averages a bucket of gradients over the ranks.
///
///     ddp.register_comm_hook(bf16_compress_hook());
///
/// Without a hook gradients are summed in canonical order. A hook gets each bucket as soon as this rank's gradients
/// are in it, and may send fewer bytes. The bucket's metadata (loss, samples, used parameters, stop requests) stays
/// exact: one small all-reduce for each bucket sums it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// A bucket, as a hook gets it.
struct GradBucket {
  std::size_t index = 0;                ///< hooks get buckets in this order, on all ranks and in all steps
  bool is_last = false;                 ///< of the step
  Tensor buffer;                        ///< (elements): all gradients, one after another, zeros between them
  std::vector<Tensor> gradients = {};   ///< views of it, with the parameters' shapes; f32 for f16 and bf16 parameters
  std::vector<std::string> names = {};  ///< of the parameters
};

/// `bucket.buffer` contains the sum over this rank's micro-batches, not divided by anything; gradients of parameters
/// that this rank has not used are -0.0. When the Work that `start` returns is complete, the buffer must contain the
/// mean over the ranks, the same on all ranks. So `start` must start the same collectives of `group`, in the same
/// order, on all ranks. The `wait` of a Work may start more collectives: buckets are waited for in order.
///
/// An exception of a hook ends the step; parameters do not change. A hook must be registered with one
/// DistributedDataParallel only.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Starts the mean of one bucket.
  virtual std::shared_ptr<Work> start(const GradBucket& bucket, ProcessGroup& group) = 0;
  /// Kind and options in one line of at most 200 characters. All ranks must register the same.
  virtual std::string describe() const = 0;
};

/// The mean. With equal weights, and if the number of micro-batches of a rank is a power of two, the bits equal those
/// without a hook.
std::shared_ptr<CommHook> allreduce_hook();
/// Rounds gradients to f16, sums them in f32, divides, rounds again, and converts back: half the bytes of f32. f16 has
/// 11 significant bits and a maximum of 65504; bf16 has 8 significant bits and the range of f32.
std::shared_ptr<CommHook> fp16_compress_hook();
std::shared_ptr<CommHook> bf16_compress_hook();  ///< the same with bf16

struct PowerSgdOptions {
  std::int64_t rank = 1;                ///< of the matrices: a higher rank is more accurate and takes more bytes
  std::int64_t start_iteration = 1000;  ///< steps without compression
  double min_compression_rate = 2;      ///< a gradient that would not shrink by more than this factor is not compressed
  bool use_error_feedback = true;       ///< the error of a step is added to the gradients of the next step
  bool warm_start = true;               ///< start from the factors of the previous step
  double orthogonalization_epsilon = 0;  ///< added to the length of each column
  std::uint64_t seed = 0;                ///< of the initial factors
};

/// PowerSGD (Vogels, Karimireddy and Jaggi 2019): a gradient of two or more dimensions, as a matrix M of n = size(0)
/// rows and m columns, is replaced by P Q' with P (n, rank) and Q (m, rank). P = mean(M Q) over the ranks, made
/// orthonormal, then Q = mean(M' P). So (n + m) rank numbers are sent instead of n m. All other gradients are averaged
/// without compression. The result follows from the seed and is the same on all ranks, but (like any compression)
/// depends on the number of ranks.
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
