// The gradients of a model's units in a step: from the gradients that backward produces to this rank's shards of the
// sums over all ranks.
//
// A unit's gradients lie in a flat buffer, laid out like its parameters, in the dtype in which they are summed.
// When the gradients of a unit are complete, its reduce-scatter starts, in the same order on all ranks: from the last
// unit to the first, then the root unit. A gradient that this rank does not have counts as -0.0, which changes no sum.
//
// Rotating: all units but the root share one buffer, and the shards have memory of their own. Only the next unit to
// reduce may get the buffer, and keeps it until its reduce-scatter has ended: backward may have written a gradient there
// that is not marked as ready yet. The unit gets the buffer when backward enters it, or when its reduce-scatter starts if
// the buffer is not free before. Not rotating: every unit has a buffer, and this rank's part of it becomes its shard.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/sharded/unit_plan_internal.h"
#include "lockstep/parallel/step/gradient_reducer_internal.h"

namespace lockstep::parallel {

// The flat gradients of one FlatLayout of trained parameters.
struct FlatGradients {
  std::size_t unit;
  FlatLayout layout;
  Tensor whole = {};  // the buffer; undefined while the unit has none
  Tensor shard = {};  // this rank's elements of the sum
  std::shared_ptr<Work> work = {};
};

// This rank's piece of a trained parameter.
struct TrainedPiece {
  nn::Parameter parameter;  // what the optimizer steps
  std::size_t flat;         // position in UnitGradients::flats()
  std::int64_t at;          // its first element in the shard
};

class UnitGradients final : public GradientReducer {
 public:
  // `may_wait`: whether a rank may wait for reductions in backward. Where gathers are collectives it may not, because
  // another rank may need its next gather first, nor in stages, because other stages may need its next message first:
  // then a unit without a buffer is reduced at the end; in stages also one beyond the operations that can be in flight.
  struct Options {
    bool rotating, may_wait, in_stages;
  };
  // Allocates the buffers; all ranks must do so. `group`: of the reductions, apart from gathers, because their relative
  // order may vary.
  UnitGradients(const std::vector<UnitLayout>& units, const optim::NamedParameters& parameters,
                std::shared_ptr<ProcessGroup> group, const Options& options);
  ~UnitGradients() override;
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;

  // The pieces that get the gradients, one for each trained parameter. `offloaded`: they are on the host.
  void set_pieces(std::vector<TrainedPiece> pieces, bool offloaded);
  const std::vector<TrainedPiece>& pieces() const { return pieces_; }
  ProcessGroup& group() const { return *group_; }

  std::vector<Tensor> views() const override;
  std::size_t size() const override { return slots_.size(); }
  DType dtype() const override { return summary_.dtype(); }
  const Tensor& leaf(std::size_t p) const override { return slots_[p].leaf; }
  const std::string& name(std::size_t p) const override { return slots_[p].name; }
  std::size_t position(std::size_t p) const { return slots_[p].position; }  // in the list of all parameters
  // The position of its flat buffer, and its first element there.
  std::pair<std::size_t, std::int64_t> place_of(std::size_t p) const { return {slots_[p].flat, slots_[p].offset}; }
  const std::vector<FlatGradients>& flats() const { return flats_; }

  // The summaries and, for each parameter, whether a rank used it, are summed by an all-reduce of their own.
  void begin_step(const StepSummary& own, double scale) override;
  // Backward enters the unit: gives it the shared buffer if it is the next unit to reduce, after the reduction of the
  // unit that had the buffer.
  void enter(std::size_t unit);
  bool is_ready(std::size_t p) const override { return slots_[p].ready; }
  void mark_ready(std::size_t p, const Tensor& gradient) override;
  void set_summary(const StepSummary& own) override { own_ = own; }
  void launch_rest() override;
  StepSummary wait() override;
  void fill(const StepScale& scale) override;
  // Before the micro-batches of a step: for reductions that a failed step has left, whose memory is that of this step's
  // gradients.
  void wait_for_units();

  std::int64_t steps() const { return steps_; }
  std::int64_t summary_elements() const { return summary_.numel(); }
  void fill_stats(TrainingStats& stats) const override;
  std::vector<std::string> unused() const override;

 private:
  struct Slot {  // one trained parameter
    std::string name;
    Tensor leaf;
    Tensor view = {};          // its place in the buffer
    Tensor pending = {};       // a gradient that has no place yet
    std::size_t position = 0;  // in the list of all parameters
    std::size_t unit = 0, flat = 0;
    std::int64_t offset = 0;
    bool ready = false, used = true;
  };
  struct UnitState {
    std::string name;
    std::vector<std::size_t> slots, flats;
    std::size_t missing = 0;  // parameters that are not ready
    bool launched = false;
    bool has_buffer = false;
    BucketStats stats;
  };

  using Clock = std::chrono::steady_clock;
  void allocate();
  void set_views(std::size_t unit);
  void take_buffer(std::size_t unit);
  void drop_buffer(std::size_t unit);
  void place(Slot& slot);
  void launch_complete();
  void launch(std::size_t unit);
  bool can_launch(std::size_t unit) const;
  bool can_reuse_buffer() const;
  void wait_for(std::size_t unit);
  bool any_rank_used(std::size_t p) const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  std::shared_ptr<ProcessGroup> group_;
  Options options_;
  std::vector<Slot> slots_;
  std::vector<FlatGradients> flats_;
  std::vector<UnitState> units_;
  std::vector<TrainedPiece> pieces_;
  bool offloaded_ = false;
  Tensor summary_;  // of the step, and a flag for each trained parameter: 1 if the rank used it
  StepSummary own_ = {};
  Tensor shared_;             // the buffer of the units in turn (u8)
  std::size_t holder_ = 0;    // the unit that has it; 0: none
  std::size_t next_ = 0;      // the next unit to reduce, counted from the last
  std::size_t launched_ = 0;  // reductions of the step
  double scale_ = 1;
  bool may_wait_ = true;     // now
  Clock::time_point start_;  // of the step
  std::int64_t steps_ = 0, copies_ = 0;
};

}  // namespace lockstep::parallel
