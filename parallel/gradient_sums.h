// The sums of the replicas' gradients, in canonical order on the first device. Not installed.
#pragma once

#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/parallel/device_books.h"
#include "lockstep/parallel/replica_workers.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

class GradientSums {
 public:
  // Every sum is multiplied by `scale`.
  GradientSums(Device device, double scale, DeviceBooks& books) : device_(device), scale_(scale), books_(books) {}

  // Notes the replicas' gradients of one parameter, `input` of the operation that runs backward. Undefined ones keep
  // their place in the order, and count for nothing. Returns where `run` puts the sum; undefined where all are.
  Tensor add(std::vector<Tensor> gradients, const autograd::Needs& needs, std::size_t input);
  // Adds up everything, each worker an equal share of all elements. Reading another device's memory is the transfer.
  void run(ReplicaWorkers* workers, const std::vector<Device>& devices) const;

 private:
  struct Sum {
    std::vector<Tensor> inputs;
    Tensor out;
    std::int64_t first = 0;  // element among those of all sums
  };
  void combine(std::int64_t begin, std::int64_t end) const;

  Device device_;
  double scale_;
  DeviceBooks& books_;
  std::vector<Sum> sums_;
  std::int64_t elements_ = 0;
};

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
