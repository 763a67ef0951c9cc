// The gradient buckets of one model: their plan, their communication memory, the parameters' views of that memory,
// and the launches, in the same order on all ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/parallel/replicated/buckets/bucket_reduction_internal.h"
#include "lockstep/parallel/replicated/buckets/launch_queue_internal.h"
#include "lockstep/parallel/step/gradient_reducer_internal.h"

namespace lockstep::parallel {

// Totals of all steps so far.
struct BucketTotals {
  std::int64_t steps = 0, reduced_bytes = 0;
  std::int64_t copies = 0;  // of gradients into their bucket or out of it, apart from those that autograd makes
};

class GradientBuckets final : public GradientReducer {
 public:
  // Plans buckets of at most `cap_mb` MiB, for gradients that become ready in this order.
  static std::vector<BucketLayout> plan(const optim::NamedParameters& parameters, std::vector<std::size_t> order,
                                        double cap_mb, bool has_summary);
  // Allocates the buckets; all ranks must do so. `before`: totals of the buckets that these will replace.
  GradientBuckets(const optim::NamedParameters& parameters, std::shared_ptr<ProcessGroup> group,
                  std::vector<BucketLayout> layouts, const BucketTotals& before = {});
  ~GradientBuckets() override;  // detaches
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Makes the parameters' gradients accumulate here.
  void attach();
  // Replaces the all-reduce by a hook. Call it only between steps.
  void set_hook(std::shared_ptr<CommHook> hook) { reduction_ = make_hook_reduction(std::move(hook)); }
  // Undefined for f16 and bf16 parameters, whose view is f32.
  std::vector<Tensor> views() const override;
  // False if these are other parameters, or Module::to has changed the dtype or device of one.
  bool fit(const std::vector<nn::Parameter>& parameters) const;

  std::size_t count() const { return buckets_.size(); }
  std::int64_t bytes_sent() const;  // by this rank in a step, by the closed form of the canonical all_reduce
  bool has_layouts(const std::vector<BucketLayout>& layouts) const;

  std::size_t size() const override { return slots_.size(); }
  DType dtype() const override { return buckets_.front().memory.dtype(); }
  const Tensor& leaf(std::size_t parameter) const override { return slots_[parameter].leaf; }
  const std::string& name(std::size_t parameter) const override { return slots_[parameter].name; }
  // The parameters in the order in which their gradients became ready in the last step.
  const std::vector<std::size_t>& order() const { return order_; }

  // The summary is sent with the first bucket. If the model is in stages, the first bucket has no place for it: buckets
  // are launched in the middle of the schedule, where no rank may wait for others, and the summary, which is known at
  // the end, has an all-reduce of its own. A rank that has joined launches no gradients before the sum of the
  // summaries says that another rank has not.
  void begin_step(const StepSummary& own, double scale) override;
  bool is_ready(std::size_t parameter) const override { return slots_[parameter].ready; }
  // Copies the gradient to its view unless it is there, and launches full buckets, in order.
  void mark_ready(std::size_t parameter, const Tensor& gradient) override;
  void launch_rest() override;
  void set_summary(const StepSummary& own) override { own_ = own; }
  StepSummary wait() override;
  void fill(const StepScale& scale) override;
  // After a failed step, instead of the rest: waits for the operations in flight, whose memory is that of the next
  // step's gradients. Ignores errors.
  void drain();

  const BucketTotals& totals() const { return totals_; }
  void fill_stats(TrainingStats& stats) const override;
  std::vector<std::string> unused() const override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {  // one parameter
    std::string name;
    Tensor leaf, view;  // view: of the bucket; f32 for f16 and bf16, rounded once when the step ends
    DType dtype;
    std::size_t bucket = 0;
    std::int64_t flag = 0;            // element of the metadata: 1 if this rank used the parameter
    bool ready = false, used = true;  // of the step
  };

  void make_bucket(BucketLayout layout);
  // The next bucket to launch; null if all have been launched.
  const Bucket* next() const { return launched_ < buckets_.size() ? &buckets_[launched_] : nullptr; }
  // The first bucket has no place for the summary.
  bool is_in_stages() const { return !buckets_.empty() && buckets_.front().layout.used == 0; }
  bool fits_in_flight(const Bucket& bucket) const;
  void launch_full();
  void launch_metadata();
  void launch_gradients();
  void launch_next();
  StepSummary reduce_summary();
  StepSummary total() const { return StepSummary::read(buckets_.front().metadata, scale_); }
  void advance();
  void wait_for(std::size_t bucket);
  void explaining(const Bucket& bucket, const char* doing, FunctionRef<void()> body);
  void mark_done();
  bool is_done(const std::shared_ptr<Work>& work) const;
  void trace(TraceKind kind, const Bucket& bucket, std::string_view what) const;
  void explain(Error& error, const Bucket& bucket, const char* doing) const;
  std::string names(const Bucket& bucket) const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  std::shared_ptr<ProcessGroup> group_;
  LaunchQueue& queue_;  // the models on the same ranks
  std::unique_ptr<BucketReduction> reduction_ = make_all_reduce();
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> order_;
  StepSummary own_ = {};                 // of the step
  double scale_ = 1;                     // of the step
  std::size_t launched_ = 0, done_ = 0;  // of the step: buckets launched, and buckets known to be complete
  Clock::time_point start_;              // of the step: when its first gradient was ready
  BucketTotals totals_;
};

}  // namespace lockstep::parallel
