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

#include "lockstep/autograd/history_internal.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/sharded/unit_plan_internal.h"
#include "lockstep/parallel/step/stats.h"

namespace lockstep::parallel {

// The flat gradients of one FlatLayout of trained parameters.
struct FlatGradients {
  std::size_t unit;
  FlatLayout layout;
  Tensor whole = {};  // the buffer; undefined while the unit has none
  Tensor shard = {};  // this rank's elements of the sum
  std::shared_ptr<Work> work = {};
};

class UnitGradients {
 public:
  // Allocates the buffers; all ranks must do so.
  UnitGradients(const std::vector<UnitLayout>& units, const optim::NamedParameters& parameters,
                std::shared_ptr<ProcessGroup> group, bool rotating);
  ~UnitGradients();
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;

  // Calls the hook in each backward when the gradient of a trained parameter is complete.
  void attach(Callback<void(std::size_t parameter, autograd::Run& run)> on_complete);
  // The views that autograd accumulates in, by trained parameter in the order of the model; undefined if it has none.
  std::vector<Tensor> views() const;

  std::size_t size() const { return slots_.size(); }  // trained parameters
  const Tensor& leaf(std::size_t p) const { return slots_[p].leaf; }
  const std::string& name(std::size_t p) const { return slots_[p].name; }
  std::size_t position(std::size_t p) const { return slots_[p].position; }  // in the list of all parameters
  // The position of its flat buffer, and its first element there.
  std::pair<std::size_t, std::int64_t> place_of(std::size_t p) const { return {slots_[p].flat, slots_[p].offset}; }
  const std::vector<FlatGradients>& flats() const { return flats_; }

  // --- a step ------------------------------------------------------------------------------------------------------
  // `scale`: of the sums. `may_wait`: whether a rank may wait for reductions in backward. Where gathers are collectives it
  // may not, because another rank may need its next gather first: then a unit without a buffer is reduced at the end.
  void begin_step(double scale, bool may_wait);
  // Backward enters the unit: gives it the shared buffer if it is the next unit to reduce, after the reduction of the
  // unit that had the buffer.
  void enter(std::size_t unit);
  bool is_ready(std::size_t p) const { return slots_[p].ready; }
  bool is_used(std::size_t p) const { return slots_[p].used; }
  std::size_t unit_of(std::size_t p) const { return slots_[p].unit; }
  // Takes a complete gradient; undefined: this rank did not use the parameter. Starts the reductions that can start.
  void mark_ready(std::size_t p, const Tensor& gradient);
  void launch_rest();  // starts the reductions that had to wait; all gradients are ready
  void wait();         // for all reductions
  // -----------------------------------------------------------------------------------------------------------------

  std::int64_t copies() const { return copies_; }
  std::int64_t buffer_bytes() const { return buffer_bytes_; }  // of all memory for gradients
  void fill(std::vector<BucketStats>& stats) const;

 private:
  struct Slot {  // one trained parameter
    std::string name;
    Tensor leaf;
    Tensor view = {};          // its place in the buffer
    Tensor pending = {};       // a gradient that has no place yet
    std::size_t position = 0;  // in the list of all parameters
    std::size_t unit = 0, flat = 0;
    std::int64_t offset = 0;
    bool ready = false, used = false;
    HookHandle hook = {};
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
  bool can_reuse_buffer() const;
  void wait_for(std::size_t unit);
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  std::shared_ptr<ProcessGroup> group_;
  bool rotating_;
  std::vector<Slot> slots_;
  std::vector<FlatGradients> flats_;
  std::vector<UnitState> units_;
  Callback<void(std::size_t parameter, autograd::Run& run)> on_complete_;
  Tensor shared_;           // the buffer of the units in turn (u8)
  std::size_t holder_ = 0;  // the unit that has it; 0: none
  std::size_t next_ = 0;    // the next unit to reduce, counted from the last
  double scale_ = 1;
  bool may_wait_ = true;
  Clock::time_point start_;  // of the step
  std::int64_t copies_ = 0, buffer_bytes_ = 0;
};

}  // namespace lockstep::parallel
