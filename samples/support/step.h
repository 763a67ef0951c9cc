// One training step, forward and backward, in each of the modes: all that differs between one device and many.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "support/inject.h"
#include "support/options.h"
#include "support/result.h"
#include "support/timeline.h"

namespace ls = lockstep;

namespace samples {

class Step {
 public:
  // Brings the model to its device, and joins the other ranks in mode ddp. Throws lockstep::InvalidArgument where
  // batch, micro-batches and ranks do not fit together.
  Step(const Options& options, ls::nn::Module& model);

  // The batches of this process: in the micro-batch modes those of its micro-batches, one after another, equally many
  // rows of each.
  ls::data::DataLoader<> loader(std::shared_ptr<const ls::data::Dataset> set) const;

  // Leaves the gradients of the mean loss of the step, and returns that loss.
  template <class Criterion>
  ls::Tensor backward(const ls::Tensor& inputs, const ls::Tensor& labels, const Criterion& criterion) {
    begin();
    const ls::Tensor x = inputs.to(devices_[0]), y = labels.to(devices_[0]);
    const auto take_loss = [&](const ls::Tensor& scores, const ls::Tensor& y) {
      const ls::TraceSpan span(ls::TraceKind::kForward, "loss");
      return criterion(scores, y);
    };
    const auto loss_fn = [&](const ls::Tensor& x, const ls::Tensor& y) { return take_loss(model_(x), y); };
    if (accumulation_) return accumulation_->backward(x, y, loss_fn);
    if (ddp_) {
      const ls::Tensor loss = ddp_->backward(x, y, loss_fn);
      injection_.after_backward(steps_, *group_, model_);
      return loss;
    }
    if (dp_ && !is_loss_outside_) return dp_->backward(x, y, loss_fn);
    const ls::Tensor scores = dp_ ? (*dp_)(x) : model_(x);  // DataParallel gathers them on the first device
    const ls::Tensor loss = take_loss(scores, y);
    loss.backward();
    return loss;
  }
  // How many rows all processes together have, where this one has `x`.
  std::int64_t rows(const ls::Tensor& x) const { return x.size(0) * ranks(); }
  // Whether to stop after this step: all ranks get the same answer after the same step.
  bool stop_requested() const;

  ls::Device device() const { return devices_[0]; }  // of the model, in mode dp of the first replica
  int ranks() const { return group_ ? group_->size() : 1; }
  bool is_main() const { return !group_ || group_->rank() == 0; }  // the one that prints and writes
  void wait_for_others();
  // Before the main rank saves where all of them have stopped: it then knows what all have drawn.
  void share_random_state();
  // When the training is over, on all ranks: throws lockstep::InvalidArgument where the fault of --inject never
  // happened.
  void check_injection();
  // Summed over all ranks, which all have to ask.
  Moved moved();
  // Of each rank's parameters, all of which have to ask.
  std::vector<std::uint64_t> hashes();
  // Of all ranks, which all have to ask; whole on the main one alone. `trace` is this process's.
  Timeline timeline(ls::Trace trace);

 private:
  void begin();
  PhaseBytes booked();
  ls::parallel::TrafficBook* book();
  std::vector<ls::parallel::LinkTraffic> links_of_all();

  const Options& options_;
  ls::nn::Module& model_;
  std::vector<ls::Device> devices_;
  bool is_loss_outside_;
  std::shared_ptr<ls::parallel::ProcessGroup> group_;
  std::optional<ls::parallel::GradientAccumulation> accumulation_;
  std::optional<ls::parallel::DataParallel> dp_;
  std::optional<ls::parallel::DistributedDataParallel> ddp_;
  PhaseBytes at_start_ = {};
  std::vector<ls::parallel::LinkTraffic> links_at_start_ = {};
  std::int64_t steps_ = 0;
  Injection injection_;
};

// Throws lockstep::InvalidArgument where a batch cannot be cut into micro-batches, or micro-batches not be dealt to
// `ranks`, evenly, or where a fault is for none of them.
void check_split(const Options& options, int ranks);
// Whether DataParallel gives the other modes' bits also where the loss is taken outside, on the gathered outputs.
bool has_same_bits_outside(const Options& options);

}  // namespace samples
