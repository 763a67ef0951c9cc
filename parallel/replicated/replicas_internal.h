// The replicas of DataParallel: on every device a tensor for each parameter, and a thread. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/replicated/replica_workers_internal.h"

namespace lockstep::parallel {

class Replicas {
 public:
  // Throws InvalidArgument where a parameter or buffer is not on devices[0].
  Replicas(const nn::Module& module, std::vector<Device> devices);

  int size() const { return static_cast<int>(devices_.size()); }
  Device device(int replica) const { return devices_[static_cast<std::size_t>(replica)]; }
  // The first `count` of them.
  std::vector<Device> devices(int count) const { return {devices_.begin(), devices_.begin() + count}; }
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  // Graphs may outlive them, and then run backward without.
  const std::shared_ptr<ReplicaWorkers>& workers() const { return workers_; }

  // Called on the caller's thread before a run. The parameters that require grad at this moment are trained
  // in the run, although the program may freeze one of them before its end.
  void begin_run();
  const std::vector<Tensor>& trained() const { return trained_; }

  // Called on the replica's thread before its forward. Sends the parameters that have changed since the last
  // call and enters the replica's parameters in `view`. If `recording`, the trained parameters are leaves of
  // this run alone, the first replica's as well: they are appended to `leaves`, in the order of `trained`.
  // Returns the bytes sent.
  std::int64_t enter(int replica, nn::ReplicaView& view, bool recording, std::vector<Tensor>& leaves);

  // Calls body(replica) for the first views.size() replicas at the same time, each on its thread, in its micro-batch
  // and with its view, in the caller's grad mode. Rethrows the first replica's exception, naming the replica and its
  // device.
  void run(const std::vector<nn::ReplicaView>& views, FunctionRef<void(int replica)> body);

 private:
  struct Copy {  // of one master on one device
    Tensor tensor;
    Ref<Storage> source = {};  // the storage it was copied from, and its version then
    std::uint32_t version = 0;
  };
  std::int64_t refresh(const Tensor& master, Copy& copy, Device device);

  std::vector<Device> devices_;
  std::vector<nn::Parameter> parameters_;
  std::vector<Tensor> trained_;
  std::vector<std::vector<Copy>> copies_;  // of each replica; the first has none
  std::shared_ptr<ReplicaWorkers> workers_;
};

}  // namespace lockstep::parallel
