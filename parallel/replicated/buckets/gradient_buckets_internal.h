// The gradient buckets of one model: their plan, their communication memory, the parameters' views of that memory,
// and the launches, in the same order on all ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/replicated/buckets/bucket_reduction_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/stats.h"
#include "lockstep/parallel/step/step_summary_internal.h"

namespace lockstep::parallel {

// Totals of all steps so far.
struct BucketTotals {
  std::int64_t steps = 0, reduced_bytes = 0;
  std::int64_t copies = 0;  // of gradients into their bucket or out of it, apart from those that autograd makes
};

class GradientBuckets {
 public:
  // Plans buckets of at most `cap_mb` MiB, for gradients that become ready in this order.
  static std::vector<BucketLayout> plan(const optim::NamedParameters& parameters, std::vector<std::size_t> order,
                                        double cap_mb);
  // Allocates the buckets; all ranks must do so. `before`: totals of the buckets that these will replace.
  GradientBuckets(const optim::NamedParameters& parameters, std::shared_ptr<ProcessGroup> group,
                  std::vector<BucketLayout> layouts, const BucketTotals& before = {});
  ~GradientBuckets();  // detaches
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Makes the parameters' gradients accumulate here. Each backward calls `on_complete` when one is complete.
  using CompleteHook = Callback<void(std::size_t parameter, autograd::Run& run)>;
  void attach(CompleteHook on_complete);
  // Replaces the all-reduce by a hook. Call it only between steps.
  void set_hook(std::shared_ptr<CommHook> hook) { reduction_ = make_hook_reduction(std::move(hook)); }
  // The views that autograd accumulates in, by parameter; undefined for f16 and bf16 parameters, whose view is f32.
  std::vector<Tensor> views() const;
  // False if these are other parameters, or Module::to has changed the dtype or device of one.
  bool fit(const std::vector<nn::Parameter>& parameters) const;

  std::size_t count() const { return buckets_.size(); }
  bool has_layouts(const std::vector<BucketLayout>& layouts) const;

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
  // Advances the reductions in flight, which backends without a thread of their own do only when called, and records
  // which buckets are complete by now.
  void advance();
  // After a failed step, instead of the rest: waits for the operations in flight, whose memory is that of the next
  // step's gradients. Ignores errors.
  void drain();
  // -----------------------------------------------------------------------------------------------------------------

  const BucketTotals& totals() const { return totals_; }
  void fill(DistributedDataParallelStats& stats) const;
  std::vector<std::string> unused() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {  // one parameter
    std::string name;
    Tensor leaf, view;  // view: of the bucket; f32 for f16 and bf16, rounded once when the step ends
    DType dtype;
    std::size_t bucket = 0;
    std::int64_t flag = 0;            // element of the metadata: 1 if this rank used the parameter
    bool ready = false, used = true;  // of the step
    HookHandle hook;
  };

  void make_bucket(BucketLayout layout);
  void wait_for(std::size_t bucket);
  void explaining(const Bucket& bucket, const char* doing, FunctionRef<void()> body);
  void mark_done();
  bool is_done(const std::shared_ptr<Work>& work) const;
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
  BucketTotals totals_;
};

}  // namespace lockstep::parallel
