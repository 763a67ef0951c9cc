// The replicas of DataParallel: on every device a tensor for each parameter, and a thread. Not installed.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/replica_worker.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {

class Replicas {
 public:
  // Throws InvalidArgument where a parameter or buffer is not on devices[0].
  Replicas(const nn::Module& module, std::vector<Device> devices);

  int size() const { return static_cast<int>(devices_.size()); }
  Device device(int replica) const { return devices_[static_cast<std::size_t>(replica)]; }
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  // A replica's own tensor for a parameter, a leaf; the first replica's is the master.
  const Tensor& leaf(int replica, std::size_t parameter) const;

  // Sends the parameters that have changed since the last time to a replica, on whatever thread calls. Returns the bytes.
  std::int64_t refresh(int replica);

  // Calls body(replica) for the first views.size() replicas at the same time, each on its thread, in its shard and with
  // its view, in the caller's grad mode. Rethrows the first replica's exception, naming the replica and its device.
  void run(const std::vector<nn::ReplicaView>& views, FunctionRef<void(int replica)> body);

 private:
  struct Copy {  // of one master on one device
    Tensor tensor;
    const void* source = nullptr;  // the storage it was copied from, and its version then
    std::uint32_t version = 0;
  };

  std::vector<Device> devices_;
  std::vector<nn::Parameter> parameters_;
  std::vector<std::vector<Copy>> copies_;  // of each replica; the first has none
  std::vector<std::unique_ptr<ReplicaWorker>> workers_;
};

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
