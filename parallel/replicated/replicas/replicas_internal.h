// The replicas of DataParallel: on every device a tensor for each parameter, and a thread. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/replicated/replicas/replica_workers_internal.h"

namespace lockstep::parallel {

class Replicas {
 public:
  // Throws InvalidArgument if a parameter or buffer is not on devices[0].
  Replicas(const nn::Module& module, std::vector<Device> devices);

  int size() const { return static_cast<int>(devices_.size()); }
  Device device(int replica) const { return devices_[static_cast<std::size_t>(replica)]; }
  // The first `count` devices.
  std::vector<Device> devices(int count) const { return {devices_.begin(), devices_.begin() + count}; }
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  // Graphs, which may outlive the workers, run backward on the calling thread without them.
  const std::shared_ptr<ReplicaWorkers>& workers() const { return workers_; }

  // Called on the caller's thread before a run. The run trains the parameters that require grad now, even if the
  // program freezes one of them before the end.
  void begin_run();
  const std::vector<Tensor>& trained() const { return trained_; }

  // Called on the replica's thread before its forward. Copies the parameters that have changed since the last call to
  // the replica's device and enters them in `view`. If `recording`, the trained parameters, also the first replica's,
  // are new leaves, which are appended to `leaves`, in the order of `trained`. Returns the bytes sent.
  std::int64_t enter(int replica, nn::ReplicaView& view, bool recording, std::vector<Tensor>& leaves);

  // Calls body(replica) for the first `running` replicas at the same time, each on its own thread, with its micro-batch
  // and view(replica), and in the caller's grad mode. Rethrows the first replica's exception, naming the replica and its
  // device.
  void run(int running, FunctionRef<const nn::ReplicaView*(int replica)> view, FunctionRef<void(int replica)> body);

 private:
  struct Copy {  // of one parameter on one device
    Tensor tensor;
    Ref<Storage> source = {};  // storage that it was copied from, and that storage's version then
    std::uint32_t version = 0;
  };
  std::int64_t refresh(const Tensor& master, Copy& copy, Device device);

  std::vector<Device> devices_;
  std::vector<nn::Parameter> parameters_;
  std::vector<Tensor> trained_;
  std::vector<std::vector<Copy>> copies_;  // by replica and parameter; empty for the first replica
  std::shared_ptr<ReplicaWorkers> workers_;
};

}  // namespace lockstep::parallel
