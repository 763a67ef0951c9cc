// One training step, forward and backward, with each strategy. The strategies have one interface; they differ in how they
// are constructed.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "support/inject.h"
#include "support/mesh.h"
#include "support/options.h"
#include "support/result.h"
#include "support/timeline.h"

namespace ls = lockstep;

namespace samples {

class Step {
 public:
  // Moves the model to its device, and joins the process group if the strategy has ranks. A strategy of
  // ShardedDataParallel keeps this rank's part of the model. Throws lockstep::InvalidArgument if batch, micro-batches
  // and ranks do not divide evenly.
  Step(const Options& options, ls::nn::Module& model);

  // The parameters for this process's optimizer, with the shapes of the whole ones: those of the model, or this rank's
  // pieces of them.
  std::vector<ls::parallel::ShardedParameter> named_parameters();
  std::vector<ls::nn::Parameter> parameters();

  // A loader of this process's batches. With micro-batches, a batch concatenates this process's micro-batches, all of
  // the same size.
  ls::data::DataLoader<> loader(std::shared_ptr<const ls::data::Dataset> set) const;

  // Computes the gradients of the mean loss of the step, and returns the loss.
  template <class Criterion>
  ls::Tensor backward(const ls::Tensor& inputs, const ls::Tensor& labels, const Criterion& criterion) {
    begin();
    const ls::Tensor x = inputs.to(devices_[0]), y = labels.to(devices_[0]);
    const auto take_loss = [&](const ls::Tensor& scores, const ls::Tensor& y) {
      const ls::TraceSpan span(ls::TraceKind::kForward, "loss");
      return criterion(scores, y);
    };
    const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor& y) { return take_loss(model_(x), y); };
    const ls::Tensor loss = with_run([&](auto& run) {
      if constexpr (std::is_same_v<decltype(run), ls::parallel::Parallel&>) {
        texts_ = x.size(0) / run.micro_batches();
        const auto mine = run.split_sequence({x, positions_of(x), y});  // this rank's sequence blocks
        return run.backward(
            std::vector{mine[0], mine[1]}, mine[2],
            [&](const std::vector<ls::Tensor>& in, const ls::Tensor& y) { return take_loss(model_(in), y); });
      }
      if (!is_loss_outside_) return run.backward(x, y, loss_fn);
      const ls::Tensor outside = take_loss(run(x), y);  // DataParallel gathers the scores on the first device
      outside.backward();
      return outside;
    });
    if (group_) injection_.after_backward(steps_, *group_, model_);
    return loss;
  }
  // Scales the gradients so that their norm is at most `max_norm`. Collective.
  void clip_grad_norm_(double max_norm);
  // Calls `body`, which may read the model, and returns its result. Collective: a sharded model is gathered for it. The
  // bytes of that are not counted.
  template <class Body>
  auto gathered(Body body) {
    if constexpr (std::is_void_v<decltype(body())>) {
      gather(body);
    } else {
      decltype(body()) result = {};
      gather([&] { result = body(); });
      return result;
    }
  }
  // The number of samples of all processes, if this process has `x`.
  std::int64_t rows(const ls::Tensor& x) const { return x.size(0) * data_ranks(options_, ranks()); }
  // The number of parts into which the ranks divide each sequence.
  int blocks_of_sequences() const { return mesh_.defined() ? ranks_along(mesh_.axes(), "cp") : 1; }
  // The number of slices of the model's matrices.
  int slices_of_matrices() const { return tensor_slices(options_, ranks()); }
  // Whether a parameter of several modules has a gradient sum for each of them, as in a pipeline.
  bool has_sums_by_module() const;
  // Whether to stop after this step. All ranks get the same answer after the same step.
  bool stop_requested();

  ls::Device device() const { return devices_[0]; }  // the model's device; for dp that of the first replica
  int ranks() const { return group_ ? group_->size() : 1; }
  int device_count() const { return ranks() * static_cast<int>(devices_.size()); }  // of all processes
  bool is_main() const { return !group_ || group_->rank() == 0; }                   // the main rank prints and writes
  void wait_for_others();
  // Whether rank 0 says so. Collective.
  bool agree(bool wanted);

  // Saves a checkpoint, or loads one into the model, the optimizer and the scheduler of `parts`, its extra tensors and
  // metadata. A file fits all strategies. All ranks must call load; for save, those of a sharded model.
  void save(const std::string& path, const ls::CheckpointParts& parts);
  void load(const std::string& path, const ls::CheckpointParts& parts);
  // Whether each process may have a part of the model, so that all of them save.
  bool is_sharded() const {
    return std::holds_alternative<ls::parallel::ShardedDataParallel>(run_) ||
           std::holds_alternative<ls::parallel::Parallel>(run_);
  }
  // Call before the main rank saves after a stop: gathers the random state of all ranks.
  void share_random_state();
  // Call on all ranks when the training is over: throws lockstep::InvalidArgument if the fault of --inject never
  // happened.
  void check_injection();
  // Collective: the bytes sent, summed over all ranks.
  Moved moved();
  // Collective: memory by the closed forms of ShardedDataParallel, before the first step, of the rank with most.
  Memory memory();
  // The share of a step in which a rank of the pipeline waits, by its schedule, if forward and both halves of backward
  // take equally long. NaN without a pipeline.
  double idle_share() const;
  // Collective: the hash of each rank's parameters.
  std::vector<std::uint64_t> hashes();
  // Collective: the traces of all ranks on the main rank, of which the first one notes the run's bytes. `trace` is this
  // process's.
  std::vector<ls::Trace> traces(ls::Trace trace);

 private:
  // Returns body(run), for the run of the strategy.
  template <class Body>
  auto with_run(Body body) {
    using Result = std::invoke_result_t<Body&, ls::parallel::GradientAccumulation&>;
    return std::visit(
        [&](auto& run) -> Result {
          if constexpr (std::is_same_v<decltype(run), std::monostate&>)
            throw ls::Error("Step: there is no run");
          else
            return body(run);
        },
        run_);
  }
  void make_run(int micro_batches);
  // (batch, time) i64: the positions of the characters.
  static ls::Tensor positions_of(const ls::Tensor& x) {
    return ls::arange(x.size(1), {.device = x.device()}).expand(x.shape());
  }
  ls::parallel::CheckpointParts of_run(const ls::CheckpointParts& parts);
  void begin();
  void gather(ls::FunctionRef<void()> body);
  PhaseBytes counted_bytes();
  const ls::parallel::TrafficStats& traffic();
  std::vector<ls::parallel::LinkTraffic> links();
  std::vector<ls::parallel::LinkTraffic> links_of_all();
  struct AxisGroup {
    std::string name;
    std::shared_ptr<ls::parallel::ProcessGroup> group;
  };
  std::vector<AxisGroup> axis_groups() const;
  std::vector<std::int64_t> bytes_by_axis() const;  // of this process, in the order of axis_groups

  const Options& options_;
  ls::nn::Module& model_;
  std::vector<ls::Device> devices_;
  bool is_loss_outside_;
  std::shared_ptr<ls::parallel::ProcessGroup> group_;
  std::variant<std::monostate, ls::parallel::GradientAccumulation, ls::parallel::DataParallel,
               ls::parallel::DistributedDataParallel, ls::parallel::ShardedDataParallel, ls::parallel::Parallel>
      run_;
  ls::parallel::DeviceMesh mesh_;  // of a Parallel
  PhaseBytes at_start_ = {};
  std::vector<ls::parallel::LinkTraffic> links_at_start_ = {}, gathered_links_ = {};  // the latter outside of steps
  std::vector<std::int64_t> axes_at_start_ = {}, gathered_by_axis_ = {};              // as bytes_by_axis
  std::int64_t steps_ = 0;
  std::int64_t texts_ = 0;  // in each micro-batch of the last step, on a mesh
  Injection injection_;
};

// Throws lockstep::InvalidArgument if a batch cannot be divided evenly into micro-batches, or the micro-batches among
// `ranks`, or if a fault is for a rank that does not exist.
void check_split(const Options& options, int ranks);
// Whether DataParallel with --loss outside (on the gathered outputs) gives the same bits as the other modes.
bool has_same_bits_outside(const Options& options);

}  // namespace samples
