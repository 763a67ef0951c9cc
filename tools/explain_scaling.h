// lockstep-explain scaling: predicts the step time of DataParallel and DistributedDataParallel on more devices.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/simulate/simulate.h"

struct ScalingQuestion {
  std::string model = "784x512x256x10";  // layer sizes of the MLP to measure
  std::int64_t batch = 128;              // samples per device
  double bucket_mb = 25;
  std::string profile;  // a profile file, instead of measuring
  std::string link = "10GbE";
  std::string ranks = "1..1024";
  lockstep::parallel::Algorithm algorithm = lockstep::parallel::Algorithm::kRing;
  bool no_overlap = false, fixed_batch = false;
};

struct Scaling {
  ScalingQuestion question;
  lockstep::parallel::Link link;
  lockstep::parallel::StepProfile profile;
  std::vector<lockstep::parallel::StepPrediction> steps;  // one for each number of ranks
};

// Measures an MLP on one device of this machine: the median of some steps. Throws InvalidArgument for invalid sizes.
lockstep::parallel::StepProfile measure_profile(const std::string& model, std::int64_t batch, double bucket_mb);
// Reads {"forward_us": ..., "optimizer_us": ..., "input_bytes": ..., "output_bytes": ..., "buckets": [{"bytes": ...,
// "backward_us": ...}]}. Throws IoError if a number is missing or out of range.
lockstep::parallel::StepProfile read_profile(const std::string& path);
// The same from text; error messages use `name` as the file name.
lockstep::parallel::StepProfile parse_profile(std::span<const std::byte> text, const std::string& name);
std::string profile_json(const lockstep::parallel::StepProfile& profile);

// Speed-up over one device: in samples per second (weak scaling), or on the same batch (fixed_batch). A profile may
// contain zeros: a step that takes no time counts as fast as one device.
double speed_up(const Scaling& scaling, double seconds, int ranks);

Scaling predict_scaling(const ScalingQuestion& question);
std::string as_text(const Scaling& scaling);
std::string as_html(const Scaling& scaling);
