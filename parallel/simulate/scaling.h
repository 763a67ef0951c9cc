/// \file
/// Predicts the time of a DataParallel and a DistributedDataParallel step on n devices over a given link, from the
/// profile of one device's step and the messages that they send on the simulated network.
#pragma once

#include <vector>

#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::parallel {

/// One step of one device on its own batch, in seconds and bytes.
struct StepProfile {
  /// Gradients that backward completes together.
  struct Bucket {
    double bytes = 0;     ///< size of the gradients
    double backward = 0;  ///< seconds from the previous bucket (or the end of forward) until these are complete
  };
  double forward = 0;                ///< seconds
  std::vector<Bucket> buckets = {};  ///< in the order in which backward completes them
  double optimizer = 0;              ///< seconds
  double input_bytes = 0;            ///< size of a device's batch
  double output_bytes = 0;           ///< size of the outputs, and of their gradients
  double backward() const;           ///< seconds of all buckets
  double parameter_bytes() const;    ///< bytes of all buckets: gradients have the parameters' sizes
};

/// Conditions of a prediction.
struct ScalingOptions {
  Link link = {};                          ///< between the devices
  Algorithm algorithm = Algorithm::kRing;  ///< of DDP's all-reduces
  bool overlap = true;                     ///< DDP reduces buckets during backward
  bool fixed_batch = false;  ///< true: the batch of one device is cut into n parts; false: each device has its own
};

/// Result of predict_step.
struct StepPrediction {
  int ranks = 1;                                   ///< devices, one rank each
  double dp = 0, ddp = 0;                          ///< seconds a step
  double dp_exposed = 0, ddp_exposed = 0;          ///< communication time not hidden by computation
  double dp_device_bytes = 0, ddp_rank_bytes = 0;  ///< device 0 in both directions; busiest rank, sent
};

/// DataParallel: device 0 sends parameters and inputs, and receives the outputs for the loss and the gradients at the
/// end. DistributedDataParallel: one all-reduce for each bucket, in sequence, each once its gradients are complete.
/// Throws InvalidArgument for fewer than one rank, or a profile without buckets or with values below 0.
StepPrediction predict_step(const StepProfile& profile, const ScalingOptions& options, int ranks);

}  // namespace lockstep::parallel
