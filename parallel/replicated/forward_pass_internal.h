// One forward of DataParallel as one operation of the caller's graph. Not installed.
//
// Each replica records a graph of its own, from leaves that nobody else sees, so that all of them can run backward at
// the same time. What the module took from outside, a tensor that is not registered, becomes an input of the
// operation.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/autograd/graph_cut_internal.h"
#include "lockstep/parallel/replicated/device_books_internal.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"
#include "lockstep/parallel/replicated/replicas_internal.h"

namespace lockstep::parallel {

class ForwardPass {
 public:
  ForwardPass(const Replicas& replicas, const Batch& inputs, int running, std::shared_ptr<DeviceBooks> books);

  std::vector<nn::ReplicaView>& views() { return views_; }
  bool recording() const { return recording_; }

  // On a replica's thread, around its forward. `leaves` stand for the parameters that require grad; rows of inputs that
  // do become leaves as well.
  void begin(int replica, std::vector<Tensor> leaves, Batch& rows);
  void end(int replica, const Tensor& output);
  // Makes `gathered`, the outputs one after another, the operation's result; `inputs` are those of the constructor.
  static Tensor record(std::unique_ptr<ForwardPass> pass, const Batch& inputs, Tensor gathered);

  // Backward: the gradients of the operation's inputs.
  autograd::Gradients backward(const Tensor& grad, const autograd::Needs& needs);

 private:
  struct Part {  // a replica's
    std::uint64_t before = 0;
    std::vector<Tensor> leaves;      // for the parameters, the inputs, and what was captured
    std::size_t first_captured = 0;  // input of the operation
    autograd::CutGraph graph;
    std::int64_t first_row = 0, rows = 0;  // in the result
    bool has_graph() const { return graph.root.defined(); }
  };
  std::size_t input_of(const Part& part, std::size_t leaf) const;
  std::vector<Tensor> backward(int replica, const Tensor& grad, const autograd::Needs& needs);
  Tensor join_rows(std::vector<Tensor> gradients, std::size_t leaf, Device device);

  std::vector<Device> devices_;
  std::weak_ptr<ReplicaWorkers> workers_;
  std::shared_ptr<DeviceBooks> books_;
  bool recording_;
  std::vector<Tensor> trained_;      // parameters that require grad
  std::vector<std::size_t> inputs_;  // those that do, by position
  std::vector<Device> input_devices_;
  std::vector<nn::ReplicaView> views_;
  std::vector<Part> parts_;
  Device target_;
};

}  // namespace lockstep::parallel
