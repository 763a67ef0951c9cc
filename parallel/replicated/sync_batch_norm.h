/// \file
/// SyncBatchNorm: batch normalisation by statistics over all micro-batches that run at the same time.
///
///     convert_sync_batchnorm(model, group);  // group: that of the mode; null for DataParallel
///     DistributedDataParallel run(model, group);
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/nn/layers/norm_layers.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

/// BatchNorm of x (n, features, ...) whose mean and variance, while training, are over the micro-batches of all ranks of
/// `group`, or of all replicas of a DataParallel if `group` is null, each weighted by its number of samples. For one
/// micro-batch per rank or replica, DataParallel, DistributedDataParallel and ShardedDataParallel give the same bits: the
/// sums are in f64 and in canonical order. Backward sums over the same micro-batches. Running statistics are updated
/// once; `.all_micro_batches` changes nothing. Eval mode does not communicate. (torch.nn.SyncBatchNorm)
///
/// All ranks call this constructor, and run the layer equally often. Micro-batches that run one after another
/// (GradientAccumulation, `.micro_batches_per_rank`, Pipeline) are an InvalidArgument in forward, as are a group with
/// other ranks than the mode's, a rank without samples in a step of `backward`, join, second derivatives, and one value
/// for each channel in total.
class SyncBatchNorm : public nn::BatchNorm {
 public:
  SyncBatchNorm(std::int64_t features, const std::shared_ptr<ProcessGroup>& group,
                const nn::BatchNormOptions& options = {});
  Tensor forward(const Tensor& x) const override;
};

/// Makes each BatchNorm of `module` compute as a SyncBatchNorm, in place: references to layers, parameters and the names
/// of the state stay as they are. Returns how many there were. All ranks of `group` must call this; no thread may run the
/// module meanwhile.
std::int64_t convert_sync_batchnorm(nn::Module& module, const std::shared_ptr<ProcessGroup>& group);

}  // namespace lockstep::parallel
