#include "lockstep/parallel/replicated/buckets/gradient_buckets_internal.h"

#include <algorithm>
#include <span>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/warning.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/step/plan.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kFirstBucketBytes = 1 << 20;

bool is_small(const Bucket& bucket) { return bytes_of(bucket.memory) <= kSmallBytes; }

}  // namespace

std::vector<BucketLayout> GradientBuckets::plan(const optim::NamedParameters& parameters,
                                                std::vector<std::size_t> order, double cap_mb, bool has_summary) {
  const auto cap = static_cast<std::int64_t>(cap_mb * (1 << 20));
  return plan_buckets(parameters, std::move(order), std::min(cap, kFirstBucketBytes), cap, has_summary);
}

GradientBuckets::GradientBuckets(const optim::NamedParameters& parameters, std::shared_ptr<ProcessGroup> group,
                                 std::vector<BucketLayout> layouts, const BucketTotals& before)
    : group_(std::move(group)), queue_(LaunchQueue::of(*group_)), slots_(parameters.size()), totals_(before) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    slots_[p].name = parameters[p].first;
    slots_[p].leaf = parameters[p].second.master();
    slots_[p].dtype = slots_[p].leaf.dtype();
  }
  for (BucketLayout& layout : layouts) make_bucket(std::move(layout));
  if (!buckets_.empty()) buckets_.back().gradients.is_last = true;  // none while all parameters are frozen
}

void GradientBuckets::attach() {
  for (const Slot& slot : slots_) {
    if (slot.dtype == slot.view.dtype()) autograd::set_gradient_view(slot.leaf, slot.view);
  }
}

void GradientBuckets::make_bucket(BucketLayout layout) {
  const Tensor& like = slots_[layout.parameters.front()].leaf;
  Bucket bucket;
  bucket.layout = std::move(layout);
  const BucketLayout& plan = bucket.layout;
  bucket.memory = group_->empty({plan.elements}, sum_dtype(like.dtype()), like.device());
  raw::fill(bucket.memory, 0);  // the gaps between gradients are reduced as well
  bucket.metadata_place = raw::slice(bucket.memory, 0, plan.metadata, plan.elements, 1);
  bucket.metadata = bucket.memory.device().is_cpu() ? bucket.metadata_place : raw::to(bucket.metadata_place, Device());
  bucket.gradients = {.index = buckets_.size(), .buffer = raw::slice(bucket.memory, 0, 0, plan.metadata, 1)};
  for (std::size_t k = 0; k < plan.parameters.size(); ++k) {
    const std::size_t p = plan.parameters[k];
    Slot& slot = slots_[p];
    const std::int64_t at = plan.offsets[k];
    slot.view = raw::view(raw::slice(bucket.memory, 0, at, at + slot.leaf.numel(), 1), slot.leaf.shape());
    slot.bucket = buckets_.size();
    slot.flag = plan.used + static_cast<std::int64_t>(k);
    bucket.gradients.gradients.push_back(slot.view);
    bucket.gradients.names.push_back(slot.name);
  }
  buckets_.push_back(std::move(bucket));
}

GradientBuckets::~GradientBuckets() {
  for (Slot& slot : slots_) {
    const Tensor view = autograd::gradient_view(slot.leaf);  // may be the view of newer buckets
    if (view.defined() && view.ref().get() == slot.view.ref().get()) autograd::set_gradient_view(slot.leaf, Tensor());
  }
}

std::vector<Tensor> GradientBuckets::views() const {
  std::vector<Tensor> views;
  for (const Slot& slot : slots_) views.push_back(slot.dtype == slot.view.dtype() ? slot.view : Tensor());
  return views;
}

bool GradientBuckets::fit(const std::vector<nn::Parameter>& parameters) const {
  return std::ranges::equal(slots_, parameters, [](const Slot& slot, const nn::Parameter& parameter) {
    return slot.leaf.ref() == parameter.master().ref() && slot.leaf.dtype() == slot.dtype &&
           slot.leaf.device() == slot.view.device();
  });
}

bool GradientBuckets::has_layouts(const std::vector<BucketLayout>& layouts) const {
  return std::ranges::equal(buckets_, layouts, {}, &Bucket::layout);
}

// --- a step --------------------------------------------------------------------------------------------------------

void GradientBuckets::begin_step(const StepSummary& own, double scale) {
  own_ = own;
  scale_ = scale;
  order_.clear();
  start_ = Clock::time_point();
  launched_ = done_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.layout.parameters.size();
  }
  for (Slot& slot : slots_) slot.ready = slot.used = false;
}

void GradientBuckets::mark_ready(std::size_t parameter, const Tensor& gradient) {
  advance();  // first: this gradient may be the last one
  order_.push_back(parameter);
  if (start_ == Clock::time_point()) start_ = Clock::now();
  Slot& slot = slots_[parameter];
  slot.ready = true;
  slot.used = gradient.defined();
  if (!slot.used) {
    raw::fill(slot.view, -0.0);  // adding -0.0 changes no value, not even the sign of a zero
  } else if (gradient.raw_data() != slot.view.raw_data()) {
    if (gradient.requires_grad()) {
      warn("DistributedDataParallel: create_graph",
           "DistributedDataParallel: gradients of backward with create_graph lose their history when they are averaged "
           "over the ranks, so they have no derivatives\ncall autograd::grad with create_graph inside the loss "
           "function, and backward without it");
    }
    raw::copy(gradient, slot.view);
    if (slot.dtype == slot.view.dtype()) slot.leaf.set_grad(slot.view);
    ++totals_.copies;
  }
  Bucket& bucket = buckets_[slot.bucket];
  set_element(bucket.metadata, slot.flag, slot.used ? 1 : 0);
  if (--bucket.pending > 0) return;
  bucket.ready = seconds();
  trace(TraceKind::kBucketReady, bucket, slot.name);
  if (own_.joined == 0) launch_full();
}

// Where models share the ranks, their launch orders may differ from rank to rank, so no rank may wait for others before
// it has launched all buckets of all models. In the middle of a schedule a rank that waits does not send what other
// stages wait for, and a rank that waits for them does not advance the reductions.
void GradientBuckets::launch_full() {
  const bool may_wait = !queue_.is_shared() && !is_in_stages();
  const Bucket* full = next();
  for (; full && full->pending == 0 && (may_wait || fits_in_flight(*full)); full = next()) launch_next();
}

// True if launching this bucket cannot block.
bool GradientBuckets::fits_in_flight(const Bucket& bucket) const {
  if (!reduction_->is_one_operation()) return false;  // a hook may start any number of operations
  const auto launched = std::span(buckets_).first(launched_);
  return launched_ < kInFlight &&
         (!is_small(bucket) || std::ranges::count_if(launched, is_small) < static_cast<std::ptrdiff_t>(kSmallInFlight));
}

// Starts the reduction of the next bucket, in two parts: the metadata (the all-reduce policy: everything), then the
// gradients.
void GradientBuckets::launch_metadata() {
  Bucket& bucket = buckets_[launched_];
  if (launched_ == 0 && !is_in_stages()) own_.write(bucket.metadata);
  bucket.launched = seconds();
  raw::copy(bucket.metadata, bucket.metadata_place);
  trace(TraceKind::kBucketLaunched, bucket, bucket.gradients.names.front());
  explaining(bucket, "launching ", [&] { bucket.metadata_work = reduction_->start_metadata(bucket, *group_, scale_); });
}

void GradientBuckets::launch_gradients() {
  Bucket& bucket = buckets_[launched_];
  explaining(bucket, "launching ", [&] { bucket.gradient_work = reduction_->start_gradients(bucket, *group_); });
  ++launched_;
}

void GradientBuckets::launch_next() {
  launch_metadata();
  launch_gradients();
}

void GradientBuckets::launch_rest() {
  advance();
  if (own_.joined > 0 && launched_ == 0) {
    launch_metadata();
    wait_for(0);
    if (total().joined == group_->size()) return;
    launch_gradients();
  }
  while (next()) launch_next();
}

// Runs `body` for a bucket, which an error names.
void GradientBuckets::explaining(const Bucket& bucket, const char* doing, FunctionRef<void()> body) {
  try {
    const PhaseGuard phase(*group_, Phase::kGradients);
    body();
  } catch (Error& error) {
    explain(error, bucket, doing);
    throw;
  }
}

void GradientBuckets::wait_for(std::size_t b) {
  Bucket& bucket = buckets_[b];
  explaining(bucket, "", [&] {
    if (bucket.metadata_work) bucket.metadata_work->wait();
    if (bucket.gradient_work) bucket.gradient_work->wait();
  });
  bucket.metadata_work = bucket.gradient_work = nullptr;
  raw::copy(bucket.metadata_place, bucket.metadata);
  if (b == done_) mark_done();
}

StepSummary GradientBuckets::wait() {
  for (std::size_t b = 0; b < launched_; ++b) wait_for(b);
  return is_in_stages() ? reduce_summary() : total();
}

StepSummary GradientBuckets::reduce_summary() {
  const Tensor summary = raw::empty({StepSummary::kElements}, {.dtype = dtype()});
  own_.write(summary);
  try {
    group_->all_reduce_scaled(summary, scale_, {.phase = Phase::kGradients, .name = "losses"})->wait();
  } catch (Error& error) {
    error.add_context(fmt::format("DistributedDataParallel: the summary of step {}", totals_.steps + 1));
    throw;
  }
  return StepSummary::read(summary, scale_);
}

void GradientBuckets::drain() {
  for (Bucket& bucket : buckets_) {
    for (std::shared_ptr<Work>* const work : {&bucket.metadata_work, &bucket.gradient_work}) {
      const std::shared_ptr<Work> left = std::exchange(*work, nullptr);
      try {
        if (left) left->wait();
      } catch (const std::exception&) {
        // The step has an error already.
      }
    }
  }
}

// The Work of a hook is only looked at: advanced, it may start collectives, and in another order than on other ranks.
bool GradientBuckets::is_done(const std::shared_ptr<Work>& work) const {
  return !work || (reduction_->is_one_operation() ? work->is_completed() : work->is_known_complete());
}

// Advances the reductions in flight, which backends without a thread of their own do only when called, and records
// which buckets are complete by now.
void GradientBuckets::advance() {
  while (done_ < launched_ && group_->size() > 1) {
    const Bucket& bucket = buckets_[done_];
    bool done = false;
    explaining(bucket, "", [&] { done = is_done(bucket.metadata_work) && is_done(bucket.gradient_work); });
    if (!done) return;
    mark_done();
  }
}

void GradientBuckets::mark_done() {
  Bucket& bucket = buckets_[done_++];
  bucket.done = seconds();
  trace(TraceKind::kBucketDone, bucket, bucket.gradients.names.front());
}

void GradientBuckets::fill(const StepScale& scale) {
  const double first = scale.first / reduction_->factor(scale_, group_->size());
  for (Slot& slot : slots_) {
    if (get_element(buckets_[slot.bucket].metadata, slot.flag) == 0) continue;
    scale_gradient(slot.view, first);
    scale_gradient(slot.view, scale.second);
    if (slot.dtype == slot.view.dtype()) {
      if (!slot.used) slot.leaf.set_grad(slot.view);
    } else {
      set_rounded(slot.leaf, slot.view);
      ++totals_.copies;
    }
  }
  ++totals_.steps;
  for (const Bucket& bucket : buckets_) totals_.reduced_bytes += bytes_of(bucket.memory);
}

// --- statistics, traces and errors ---------------------------------------------------------------------------------

// `what`: for a bucket that is ready its last parameter, else its first parameter.
void GradientBuckets::trace(TraceKind kind, const Bucket& bucket, std::string_view what) const {
  trace_event(kind, what, TraceTime::now(),
              {.bytes = bytes_of(bucket.memory), .id = static_cast<std::int64_t>(bucket.gradients.index)});
}

void GradientBuckets::explain(Error& error, const Bucket& bucket, const char* doing) const {
  const bool late = dynamic_cast<const CommTimeout*>(&error) != nullptr;
  const std::string all = names(bucket);
  error.add_context(fmt::format("DistributedDataParallel: {}bucket {} of {} of step {}{}", doing,
                                bucket.gradients.index, buckets_.size(), totals_.steps + 1,
                                late ? " still misses other ranks' gradients of " + all : " (" + all + ")"));
}

// "fc2.bias, fc2.weight and 12 more"
std::string GradientBuckets::names(const Bucket& bucket) const {
  constexpr std::size_t kShown = 3;
  const std::vector<std::string>& in = bucket.gradients.names;
  std::string text;
  for (std::size_t k = 0; k < std::min(in.size(), kShown); ++k) text += (k > 0 ? ", " : "") + in[k];
  return in.size() > kShown ? fmt::format("{} and {} more", text, in.size() - kShown) : text;
}

void GradientBuckets::fill_stats(TrainingStats& stats) const {
  for (const Bucket& bucket : buckets_) {
    stats.buckets.push_back({.bytes = bytes_of(bucket.memory),
                             .parameters = bucket.gradients.names,
                             .ready = bucket.ready,
                             .launched = bucket.launched,
                             .done = bucket.done});
  }
  stats.steps = totals_.steps;
  stats.reduced_bytes = totals_.reduced_bytes;
  stats.copies = totals_.copies;
  for (const Slot& slot : slots_) stats.copies += autograd::gradient_copies(slot.leaf);
  stats.take_overlap();
}

std::int64_t GradientBuckets::bytes_sent() const {
  const auto bytes_of = [&](std::int64_t elements, DType dtype) {
    return all_reduce_bytes(elements, static_cast<std::int64_t>(item_size(dtype)), group_->rank(), group_->size());
  };
  std::int64_t bytes = is_in_stages() ? bytes_of(StepSummary::kElements, dtype()) : 0;
  for (const Bucket& bucket : buckets_) bytes += bytes_of(bucket.memory.numel(), bucket.memory.dtype());
  return bytes;
}

std::vector<std::string> GradientBuckets::unused() const {
  std::vector<std::string> names;
  for (const Slot& slot : slots_) {
    if (!slot.used) names.push_back(slot.name);
  }
  return names;
}

}  // namespace lockstep::parallel
