// The sums of the replicas' gradients, in canonical order on the first device. Not installed.
#pragma once

#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/parallel/replicated/replicas/device_traffic_internal.h"
#include "lockstep/parallel/replicated/replicas/replica_workers_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"

namespace lockstep::parallel {

class GradientSums {
 public:
  // Every sum is multiplied by `scale`.
  GradientSums(Device device, const StepScale& scale, DeviceTraffic& traffic)
      : device_(device), scale_(scale), traffic_(traffic) {}

  // Adds one parameter's term: the replicas' gradients of `input` of the operation that runs backward. Undefined
  // gradients keep their place in the canonical order.
  void add(std::vector<Tensor> gradients, const autograd::Needs& needs, std::size_t input);
  // Returns the sums, undefined where all gradients are undefined. Each worker sums an equal share of all elements.
  // On the CPU, reading another device's memory is the transfer; on a GPU, gradients are copied to `device` first.
  autograd::Gradients run(ReplicaWorkers* workers, const std::vector<Device>& devices);

 private:
  struct Sum {
    std::vector<Tensor> inputs;
    Tensor out;              // in the dtype of sums
    DType dtype = kFloat32;  // of the gradients
    std::int64_t first = 0;  // offset among the elements of all sums
  };
  void combine(std::int64_t begin, std::int64_t end) const;

  Device device_;
  StepScale scale_;
  DeviceTraffic& traffic_;
  std::vector<Sum> sums_;
  std::int64_t elements_ = 0;
  std::vector<std::int64_t> sent_;  // bytes, by replica
};

}  // namespace lockstep::parallel
