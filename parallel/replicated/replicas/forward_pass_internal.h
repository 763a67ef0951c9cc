// One forward of DataParallel as one operation of the caller's graph. Not installed.
//
// Each replica records a graph of its own, from private leaves, so that all replicas can run backward at the same
// time. A tensor that the module uses without having registered it is captured: it becomes an input of the operation.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/autograd/graph_cut_internal.h"
#include "lockstep/parallel/replicated/replicas/device_traffic_internal.h"
#include "lockstep/parallel/replicated/replicas/replicas_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"

namespace lockstep::parallel {

class ForwardPass {
 public:
  ForwardPass(const Replicas& replicas, const Batch& inputs, int running, std::shared_ptr<DeviceTraffic> traffic);

  std::vector<nn::ReplicaView>& views() { return views_; }
  bool recording() const { return recording_; }

  // Called on a replica's thread, before and after its forward. `leaves` represent the parameters that require grad.
  // The replica's part `rows` of inputs that require grad becomes leaves as well.
  void begin(int replica, std::vector<Tensor> leaves, Batch& rows);
  void end(int replica, const Tensor& output);
  // Makes `gathered`, the concatenated outputs, the operation's result. `inputs` are those of the constructor.
  static Tensor record(std::unique_ptr<ForwardPass> pass, const Batch& inputs, Tensor gathered);

  // Runs backward and returns the gradients of the operation's inputs.
  autograd::Gradients backward(const Tensor& grad, const autograd::Needs& needs);

 private:
  struct Part {                      // of a replica
    std::uint64_t before = 0;        // the newest operation before its forward
    std::vector<Tensor> leaves;      // for parameters, inputs and captured tensors
    std::size_t first_captured = 0;  // position among the operation's inputs
    autograd::CutGraph graph;
    std::int64_t first_row = 0, rows = 0;  // of the result
    bool has_graph() const { return !graph.roots.empty(); }
  };
  std::size_t input_of(const Part& part, std::size_t leaf) const;
  std::vector<Tensor> backward(int replica, const Tensor& grad, const autograd::Needs& needs);
  Tensor join_rows(std::vector<Tensor> gradients, std::size_t leaf, Device device);

  std::vector<Device> devices_;
  std::weak_ptr<ReplicaWorkers> workers_;
  std::shared_ptr<DeviceTraffic> traffic_;
  bool recording_;
  std::vector<Tensor> trained_;      // parameters that require grad
  std::vector<std::size_t> inputs_;  // positions of the inputs that require grad
  std::vector<Device> input_devices_;
  std::vector<nn::ReplicaView> views_;
  std::vector<Part> parts_;
  Device target_;
};

}  // namespace lockstep::parallel
