// When the units of a model are gathered and released.
//
// In forward a unit is gathered when its module begins, and may be released when the module has ended. In backward a
// unit is gathered when the gradient of its output arrives, and may be released when the gradient of another unit's
// output arrives. The root unit stays from the start of a micro-batch to its end, the last unit from forward to
// backward.
//
// If the model is in pipeline stages, a micro-batch passes each model chunk of this rank apart, and several micro-batches
// are between their forward and their backward. Then no unit stays between the two, and a pass has the units of its chunk
// alone: those with parameters of it, the root unit among them. A backward in two parts gathers for the first part as a
// whole backward does. The second part makes gradients of parameters, mostly without reading parameters: where a gather is
// a copy, it gathers only what an operation reads. Elsewhere it gathers all units, because other ranks may read some.
//
// Where ranks can read each other's memory, a gather is a copy, and each rank gathers only the units that it needs. A
// barrier at the start of the step ensures that all shards are up to date, and no rank changes its shards before all
// ranks have reduced their gradients. Elsewhere a gather is a collective, so in each micro-batch all ranks start the
// same gathers in the same order, whichever parts of the model they use: in forward all units in model order; in
// backward the opposite order, without the root and the last unit if these are still gathered. A request for a unit
// first starts the gathers of the earlier units of that order, and the end of forward and of backward starts the
// remaining ones. So no rank may gather a unit again because it released it too early: see State::awaited. A rank that
// calls a unit twice in forward, or calls units in another order than that of the model, does gather again; then all
// ranks have to.
//
// Units other than the root that are not resident share two buffers. A gather takes the free buffer whose last gather
// is oldest. If neither is free, for example in an operation on parameters of three units, a gather allocates another
// buffer, which is freed at the end of the step.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "lockstep/parallel/sharded/unit_parameters_internal.h"
#include "lockstep/parallel/step/micro_batch_observer_internal.h"

namespace lockstep::parallel {

class UnitGathers final : public MicroBatchObserver {
 public:
  // A model chunk of a pipeline: its units in ascending order, and how many of its backwards in a step are in two parts.
  struct Chunk {
    std::vector<std::size_t> units;
    int split_backwards = 0;
  };
  // Allocates the buffers. `units` must outlive this object. The first one is the root. `chunks` is empty if the model is
  // not in stages.
  UnitGathers(std::vector<UnitParameters>& units, std::shared_ptr<ProcessGroup> group, std::vector<Chunk> chunks);

  // --- a step, in this order; resident parameters are gathered in its first micro-batch alone -----------------------
  void begin_step();
  void begin_forward(const MicroBatchPass& pass) override;
  void end_forward() override;
  void begin_backward(const MicroBatchPass& pass, BackwardPart part) override;
  void end_backward() override;
  void skip_backward(const MicroBatchPass& pass) override;
  void end_step() override;  // makes the parameters unreadable; after an exception without waiting for other ranks
  // -----------------------------------------------------------------------------------------------------------------

  // How often a unit that is not resident is gathered in a step. Operations that read parameters in the second part of a
  // backward are not counted.
  std::int64_t gathers_of(std::size_t unit, int micro_batches) const;
  // Whether gathers are copies, and barriers have to separate them from steps.
  bool are_direct() const { return direct_; }
  bool is_idle() const { return phase_ == Phase::kNone; }  // outside steps: the parameters are distributed
  bool is_running() const { return phase_ == Phase::kForward || phase_ == Phase::kBackward; }  // a micro-batch
  // All units outside steps, in memory of their own, from gather_all to end_all. All ranks must call gather_all; errors
  // about ranks that do not name the purpose, of at most 24 bytes.
  bool has_all() const { return phase_ == Phase::kAll; }
  void gather_all(const char* purpose);
  void end_all();
  void enter_forward(std::size_t unit);  // the unit's forward begins; also when backward repeats it
  void leave_forward(std::size_t unit);  // the unit's forward has ended
  // The gradient of an output. Owned by the output's graph: without a graph no gradient comes.
  struct Expected {
    bool has_arrived = false;
  };
  std::shared_ptr<Expected> expect_backward(std::size_t unit);
  void enter_backward(std::size_t unit);  // the gradient of the unit's output has arrived
  // An operation reads parameters of a unit that is not gathered. In forward the unit then stays until the end of
  // forward; in backward, until the gradient of another unit's output arrives.
  void need(std::size_t unit);

 private:
  enum class Phase : std::uint8_t { kNone, kForward, kBackward, kAll };
  struct State {
    bool launched = false;  // its gather has been launched, and it has not been released since
    bool active = false;    // must not be released: in use
    bool awaited = false;   // must not be released: this phase may still request it
  };
  // A unit in a pass, from the begin of the forward to the end of the backward.
  struct Use {
    bool requested = false;
    std::vector<std::weak_ptr<Expected>> expected;  // gradients of its outputs
  };
  // The gathers of a chunk, in order.
  struct Order {
    std::vector<std::size_t> forward, backward;
    int split_backwards = 0;
  };
  // Memory of the units in turn.
  struct Buffer {
    Tensor memory;           // u8
    int holder = -1;         // the unit in it; -1: none
    std::uint64_t used = 0;  // number of the gather that took it
  };

  std::size_t count() const { return units_.size(); }
  // From forward to backward.
  bool is_kept(std::size_t unit) const { return !is_in_stages_ && (unit == 0 || unit + 1 == units_.size()); }
  bool in_order() const { return !direct_; }  // whether ranks gather in the same order
  Tensor allocate(std::int64_t bytes) const;
  std::vector<std::size_t> backward_order(const std::vector<std::size_t>& units) const;
  void enter_pass(const MicroBatchPass& pass) { pass_ = &passes_.try_emplace(pass, count()).first->second; }
  void leave_pass();
  void begin_phase(Phase phase, const std::vector<std::size_t>& order);
  void request(std::size_t unit, bool may_evict = true);
  void launch(std::size_t unit, bool may_evict);
  void launch_next(bool may_evict = true);
  void launch_rest();
  void release_all();
  bool is_free(const Buffer& buffer, bool may_evict) const;
  Buffer& take_buffer(bool may_evict);
  void release(std::size_t unit);

  std::vector<UnitParameters>& units_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<State> states_;
  bool direct_;  // gathers are copies
  bool is_in_stages_;
  std::int64_t largest_ = 0;  // bytes of the largest unit but the root
  Tensor root_memory_;
  std::vector<Buffer> buffers_;  // at least kBuffers
  std::uint64_t gathers_ = 0;
  Phase phase_ = Phase::kNone;
  BackwardPart part_ = BackwardPart::kWhole;           // in Phase::kBackward
  std::map<MicroBatchPass, std::vector<Use>> passes_;  // by unit
  std::vector<Use>* pass_ = nullptr;                   // the one that runs
  std::vector<Order> orders_;                          // by chunk
  std::vector<std::size_t> none_;
  const std::vector<std::size_t>* order_ = &none_;  // in which all ranks gather in this phase
  std::size_t next_ = 0;                            // position in it
};

}  // namespace lockstep::parallel
