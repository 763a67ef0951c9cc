// The reducer of DistributedDataParallel: buckets of gradients, filled by backward and reduced as soon as they are
// full. Not installed.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/parallel/replicated/bucket_plan_internal.h"
#include "lockstep/parallel/replicated/comm_hooks.h"
#include "lockstep/parallel/replicated/distributed.h"
#include "lockstep/parallel/replicated/gradient_sets_internal.h"
#include "lockstep/parallel/replicated/standing_gradients_internal.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::parallel {

class Reducer {
 public:
  using Named = std::vector<std::pair<std::string, nn::Parameter>>;
  Reducer(Named parameters, std::shared_ptr<ProcessGroup> group, const DistributedDataParallelOptions& options);
  ~Reducer();  // takes the hooks back
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Hooks do nothing while it is off.
  void set_sync(bool on) { sync_ = on; }
  bool sync() const { return sync_; }
  // Whether one launches on this very group. Two would have to launch in the same order on all ranks.
  static bool is_on(const ProcessGroup& group);
  // Forgets a step that an error cut short.
  void abandon();

  // What the last micro-batch's backward of a step must know. `sets` and `standing` are merged into the gradients
  // first.
  struct Step {
    GradientSets* sets = nullptr;
    StandingGradients* standing = nullptr;
    double standing_factor = 1;      // these are means over the rank, the others sums
    std::int64_t micro_batches = 1;  // that this rank has run
    std::int64_t rows = 0;           // of them
    double loss = 0;                 // the sum of their losses
    bool weighted = false;           // by rows
    bool joined = false;             // this rank is out of data, and only takes part
  };
  // Around that backward. Without them a backward is a step of its own: one micro-batch, ended with backward.
  void begin_step(const Step& step);
  void end_step();
  // The mean loss over all ranks' micro-batches, of the last step.
  double mean_loss() const { return mean_loss_; }
  // The wish of this rank to stop, which travels with the next step; whether any rank had it in the last one.
  void request_stop() { wants_stop_ = true; }
  bool stop_requested() const { return stop_requested_; }
  // Buckets go through the hook from now on, their tails do not. Null: none.
  void set_hook(std::shared_ptr<CommHook> hook);
  // Inside `join`, whose options live as long; null: outside.
  void set_join(const JoinOptions* join) { join_ = join; }
  // A step of the other ranks, to which this one adds nothing; its parameters have no gradients. False where all
  // ranks are out of data: then there was none.
  bool shadow_step();
  // Ranks that were out of data in the last step.
  int joined() const { return joined_; }
  // Whether other models share the ranks.
  bool alone() const { return group_->reducers_->size() == 1; }
  // Calls `body` after each step, when the gradients are there.
  void after_step(Callback<void()> body) { after_step_ = std::move(body); }

  std::int64_t steps() const { return steps_; }
  std::vector<Tensor> homes() const;
  // True where Module::to has given a parameter another dtype or device.
  bool outdated() const;
  void fill(DistributedDataParallelStats& stats) const;
  std::vector<std::string> unused() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Bucket {
    BucketLayout layout;
    Tensor memory;            // gradients and tail
    Tensor tail = {};         // the tail, or on a GPU what stands for it on the host ...
    Tensor tail_place = {};   // ... and is copied here and back around the reduction
    Tensor own;               // what no hook reduces: all of it, or with a hook the tail
    GradBucket hooked = {};   // what the hook reduces
    std::size_t pending = 0;  // parameters whose gradient is not complete
    std::shared_ptr<Work> work = nullptr, hook_work = nullptr;
    double ready = 0, launched = 0, done = 0;
  };
  struct Slot {         // one parameter's place
    Tensor leaf, home;  // in f32 for f16 and bf16, rounded once when the step ends
    DType dtype;
    std::size_t bucket = 0;
    std::int64_t used_bit = 0;  // in the tail, in elements
    bool ready = false, used = false;
    HookHandle hook;
  };

  void complete(std::size_t parameter, autograd::Run& run);
  void begin(const autograd::Run* run);
  bool takes_part(const autograd::Run& run) const;
  void settle(std::size_t parameter);
  bool is_early_enough(const Bucket& bucket) const;
  void launch_early();
  void launch_rest();
  void launch_next();
  void start_own(std::size_t bucket);
  void start_hook(std::size_t bucket);
  void drain();
  void end_backward(autograd::Run& run);
  void finish();
  void wait_for(std::size_t bucket);
  void look_for_done();
  void mark_done();
  void take_results();
  double tail_sum(Tail at) const;
  int nominal_micro_batches() const { return group_->size() * (has_step_ ? options_.micro_batches_per_rank : 1); }
  void trace_bucket(TraceKind kind, std::size_t bucket, std::string_view what) const;
  void explain(Error& error, std::size_t bucket, const char* doing) const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  std::string names(const Bucket& bucket) const;

  Named parameters_;
  std::shared_ptr<ProcessGroup> group_;
  DistributedDataParallelOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  Callback<void()> after_step_;
  std::shared_ptr<CommHook> hook_;
  const JoinOptions* join_ = nullptr;

  bool sync_ = true;
  bool active_ = false;                 // a step is under way
  const autograd::Run* run_ = nullptr;  // the backward whose end ends it ...
  std::weak_ptr<const int> run_lives_;  // ... unless an error has ended that
  bool has_step_ = false;               // between begin_step and end_step
  Step step_;
  std::size_t next_ = 0;                     // bucket to launch
  std::size_t done_ = 0;                     // the first bucket that is not known to be done
  std::size_t early_ = 0, early_small_ = 0;  // buckets launched while backward ran
  Clock::time_point start_;
  double mean_loss_ = 0;
  bool wants_stop_ = false, stop_requested_ = false;
  int joined_ = 0;
  std::int64_t steps_ = 0, copies_ = 0;
};

}  // namespace lockstep::parallel
