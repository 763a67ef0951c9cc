/// \file
/// What DataParallel and DistributedDataParallel make of one device's step on n devices over a given link: by the messages
/// that they send, on the simulated network.
#pragma once

#include <vector>

#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::parallel {

/// One step of one device on its own batch, in seconds and bytes.
struct StepProfile {
  /// What backward completes together.
  struct Bucket {
    double bytes = 0;     ///< of gradients
    double backward = 0;  ///< from the bucket before (or the end of forward) until these gradients are complete
  };
  double forward = 0;                ///< seconds
  std::vector<Bucket> buckets = {};  ///< in the order in which backward completes them
  double optimizer = 0;              ///< seconds
  double input_bytes = 0;            ///< of a device's batch
  double output_bytes = 0;           ///< of its outputs, and so of their gradients
  double backward() const;           ///< of all buckets
  double parameter_bytes() const;    ///< of all buckets: gradients have the parameters' sizes
};

/// What the step is predicted for.
struct ScalingOptions {
  Link link = {};                          ///< between the devices
  Algorithm algorithm = Algorithm::kRing;  ///< of DDP's all-reduces
  bool overlap = true;                     ///< DDP reduces a bucket while backward goes on
  bool fixed_batch = false;  ///< the batch is that of one device, cut into n parts; else each device has its own
};

/// What predict_step says.
struct StepPrediction {
  int ranks = 1;                                   ///< devices, one rank each
  double dp = 0, ddp = 0;                          ///< seconds a step
  double dp_exposed = 0, ddp_exposed = 0;          ///< of these, what no computation hides
  double dp_device_bytes = 0, ddp_rank_bytes = 0;  ///< through device 0, in both directions; sent by the busiest rank
};

/// DataParallel: device 0 sends parameters and inputs, the outputs meet there for the loss, and so do the gradients at the
/// end. DistributedDataParallel: an all-reduce for each bucket, one after another, each once its gradients are complete.
/// Throws InvalidArgument for less than one rank, or a profile without buckets or with values below 0.
StepPrediction predict_step(const StepProfile& profile, const ScalingOptions& options, int ranks);

}  // namespace lockstep::parallel
