// lockstep-explain scaling: what DataParallel and DistributedDataParallel make of a step on more devices.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/simulate/simulate.h"

struct ScalingQuestion {
  std::string model = "784x512x256x10";  // sizes of the layers of an MLP, to be measured here
  std::int64_t batch = 128;              // rows of a device
  double bucket_mb = 25;
  std::string profile;  // a file instead of model and batch
  std::string link = "10GbE";
  std::string ranks = "1..1024";
  lockstep::parallel::Algorithm algorithm = lockstep::parallel::Algorithm::kRing;
  bool no_overlap = false, fixed_batch = false;
};

struct Scaling {
  ScalingQuestion question;
  lockstep::parallel::Link link;
  lockstep::parallel::StepProfile profile;
  std::vector<lockstep::parallel::StepPrediction> steps;  // by ranks
};

// The median of some steps of an MLP on one device of this machine. Throws InvalidArgument for sizes that are none.
lockstep::parallel::StepProfile measure_profile(const std::string& model, std::int64_t batch, double bucket_mb);
// {"forward_us": ..., "optimizer_us": ..., "input_bytes": ..., "output_bytes": ..., "buckets": [{"bytes": ..., "backward_us":
// ...}]}. Throws IoError where a number is missing or senseless.
lockstep::parallel::StepProfile read_profile(const std::string& path);
// The same from text; `name` stands for the file in messages.
lockstep::parallel::StepProfile parse_profile(std::span<const std::byte> text, const std::string& name);
std::string profile_json(const lockstep::parallel::StepProfile& profile);

Scaling predict_scaling(const ScalingQuestion& question);
std::string as_text(const Scaling& scaling);
std::string as_html(const Scaling& scaling);
