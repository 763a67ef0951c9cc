// The gradient buckets of one model: their plan, their communication memory, the parameters' views of that memory,
// and the launches, in the same order on all ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/parallel/replicated/buckets/bucket_reduction_internal.h"
#include "lockstep/parallel/replicated/buckets/step_summary_internal.h"
#include "lockstep/parallel/replicated/distributed.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"
#include "lockstep/tensor/trace.h"

namespace lockstep::parallel {

class GradientBuckets {
 public:
  using Named = std::vector<std::pair<std::string, nn::Parameter>>;
  using CompleteHook = Callback<void(std::size_t parameter, autograd::Run& run)>;
  // Plans buckets of at most `cap_mb` MiB. Each backward calls `on_complete` when a parameter's gradient is complete.
  GradientBuckets(Named parameters, std::shared_ptr<ProcessGroup> group, double cap_mb, CompleteHook on_complete);
  ~GradientBuckets();  // removes the hooks and views
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Replaces the all-reduce by a hook. Call it only between steps.
  void set_hook(std::shared_ptr<CommHook> hook) { reduction_ = make_hook_reduction(std::move(hook)); }
  // The views that autograd accumulates in, by parameter; undefined for f16 and bf16 parameters, whose view is f32.
  std::vector<Tensor> views() const;
  // False if these are other parameters, or Module::to has changed the dtype or device of one.
  bool fit(const std::vector<nn::Parameter>& parameters) const;

  std::size_t size() const { return slots_.size(); }               // parameters
  DType dtype() const { return buckets_.front().memory.dtype(); }  // of the summary
  const Tensor& leaf(std::size_t parameter) const { return slots_[parameter].leaf; }
  bool is_ready(std::size_t parameter) const { return slots_[parameter].ready; }

  // --- a step, in this order ---------------------------------------------------------------------------------------
  void begin_step();
  // Marks a complete gradient as ready, and copies it to its view unless it is there. Undefined: this rank did not use
  // the parameter.
  void mark_ready(std::size_t parameter, const Tensor& gradient);
  // The next bucket to launch; null if all have been launched.
  const Bucket* next() const { return launched_ < buckets_.size() ? &buckets_[launched_] : nullptr; }
  // True if launching this bucket cannot block. Where models share the ranks, their launch orders may differ from
  // rank to rank, so no rank may wait for others before it has launched all buckets of all models.
  bool fits_in_flight(const Bucket& bucket) const;
  // Starts the reduction of the next bucket, in two parts: the metadata (the all-reduce policy: everything), then the
  // gradients. `summary` is sent with the first bucket. The sums are multiplied by `scale`.
  void launch_metadata(const StepSummary& summary, double scale);
  void launch_gradients();
  void wait_for_metadata() { wait_for(0); }  // of the first bucket
  void wait();                               // for all buckets
  // The sum of the ranks' summaries.
  StepSummary total(double scale) const { return StepSummary::read(buckets_.front().metadata, scale); }
  // Multiplies the gradients by scale.first (divided by the factor that the reduction has applied for
  // `launched_scale`) and by scale.second, and places them in grad() of all parameters that any rank used.
  void finish_step(const StepScale& scale, double launched_scale);
  // Records which buckets are complete by now, without working on reductions, which would delay backward.
  void look_for_done();
  // -----------------------------------------------------------------------------------------------------------------

  std::int64_t steps() const { return steps_; }
  void fill(DistributedDataParallelStats& stats) const;
  std::vector<std::string> unused() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {  // one parameter
    std::string name;
    Tensor leaf, view;  // view: of the bucket; f32 for f16 and bf16, rounded once when the step ends
    DType dtype;
    std::size_t bucket = 0;
    std::int64_t flag = 0;  // element of the metadata: 1 if this rank used the parameter
    bool ready = false, used = false;
    HookHandle hook;
  };

  void make_bucket(BucketLayout layout);
  void wait_for(std::size_t bucket);
  void draining(const Bucket& bucket, const char* doing, FunctionRef<void()> body);
  void drain();
  void mark_done();
  void trace(TraceKind kind, const Bucket& bucket, std::string_view what) const;
  void explain(Error& error, const Bucket& bucket, const char* doing) const;
  std::string names(const Bucket& bucket) const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<BucketReduction> reduction_ = make_all_reduce();
  CompleteHook on_complete_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  std::size_t launched_ = 0, done_ = 0;  // of the step: buckets launched, and buckets known to be complete
  Clock::time_point start_;              // of the step: when its first gradient was ready
  std::int64_t steps_ = 0, copies_ = 0;
};

}  // namespace lockstep::parallel
