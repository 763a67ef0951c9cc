#include "lockstep/parallel/replicated/reducer_internal.h"

#include <algorithm>
#include <cmath>

#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/warning.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kFirstBucketBytes = 1 << 20;

std::vector<nn::Parameter> handles(const Reducer::Named& named) {
  std::vector<nn::Parameter> parameters;
  for (const auto& [name, parameter] : named) parameters.push_back(parameter);
  return parameters;
}

// One element of a bucket's tail, without the cost of an operation.
template <class T>
T& element(const Tensor& memory, std::int64_t at) {
  return static_cast<T*>(memory.raw_data())[at];
}

void set_element(const Tensor& memory, std::int64_t at, double value) {
  if (memory.dtype() == kFloat64)
    element<double>(memory, at) = value;
  else
    element<float>(memory, at) = static_cast<float>(value);
}

double get_element(const Tensor& memory, std::int64_t at) {
  return memory.dtype() == kFloat64 ? element<double>(memory, at) : element<float>(memory, at);
}

}  // namespace

Reducer::Reducer(Named parameters, std::shared_ptr<ProcessGroup> group, const DistributedDataParallelOptions& options)
    : parameters_(std::move(parameters)), group_(std::move(group)), options_(options), slots_(parameters_.size()) {
  const auto cap = static_cast<std::int64_t>(options.bucket_cap_mb * (1 << 20));
  for (BucketLayout& layout : plan_buckets(handles(parameters_), std::min(cap, kFirstBucketBytes), cap)) {
    const Tensor& first = parameters_[layout.parameters.front()].second.master();
    Tensor memory = group_->empty({layout.elements}, sum_dtype(first.dtype()), first.device());
    raw::fill(memory, 0);  // the gaps between gradients are added up, too
    const Tensor place = raw::slice(memory, 0, layout.tail, layout.elements, 1);
    const Tensor tail = memory.device().is_cpu() ? place : raw::to(place, Device());
    buckets_.push_back(
        {.layout = std::move(layout), .memory = memory, .tail = tail, .tail_place = place, .own = memory});
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const BucketLayout& layout = buckets_[b].layout;
    for (std::size_t k = 0; k < layout.parameters.size(); ++k) {
      const std::size_t p = layout.parameters[k];
      Slot& slot = slots_[p];
      slot.leaf = parameters_[p].second.master();
      const std::int64_t at = layout.offsets[k];
      slot.home = raw::view(raw::slice(buckets_[b].memory, 0, at, at + slot.leaf.numel(), 1), slot.leaf.shape());
      slot.bucket = b;
      slot.used_bit = kTailFixed + static_cast<std::int64_t>(k);
      slot.dtype = slot.leaf.dtype();
      if (slot.dtype == slot.home.dtype()) autograd::set_gradient_home(slot.leaf, slot.home);
      slot.hook = autograd::register_leaf_hook(slot.leaf, [this, p](autograd::Run& run) { complete(p, run); });
    }
  }
  group_->reducers_->push_back(this);
}

Reducer::~Reducer() {
  std::erase(*group_->reducers_, this);
  for (Slot& slot : slots_) {
    slot.hook.remove();
    const Tensor home = autograd::gradient_home(slot.leaf);  // another reducer's, where one has been made since
    if (home.defined() && home.ref().get() == slot.home.ref().get()) autograd::set_gradient_home(slot.leaf, Tensor());
  }
}

std::vector<Tensor> Reducer::homes() const {
  std::vector<Tensor> homes;
  for (const Slot& slot : slots_) homes.push_back(slot.dtype == slot.home.dtype() ? slot.home : Tensor());
  return homes;
}

bool Reducer::is_on(const ProcessGroup& group) {
  return std::ranges::any_of(*group.reducers_, [&](const Reducer* each) { return each->group_.get() == &group; });
}

bool Reducer::outdated() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) {
    return slot.leaf.dtype() != slot.dtype || slot.leaf.device() != slot.home.device();
  });
}

void Reducer::abandon() {
  active_ = has_step_ = false;
  run_ = nullptr;
  step_ = Step();
}

// The hook: this parameter's gradient is complete. Whether to synchronise is decided here, while backward runs.
void Reducer::complete(std::size_t parameter, autograd::Run& run) {
  if (!sync_) return;
  if (has_step_ ? !active_ : !takes_part(run)) {  // an error may have cut the last one short
    begin(&run);
    if (!has_step_) {
      const auto lives = std::make_shared<const int>();
      run_lives_ = lives;
      run.at_end([this, &run, lives = lives] { end_backward(run); });
    }
  }
  look_for_done();  // first: this gradient may be the last one
  settle(parameter);
  launch_early();
}

// Whether this run's end ends the step under way.
bool Reducer::takes_part(const autograd::Run& run) const {
  return active_ && !has_step_ && run_ == &run && !run_lives_.expired();
}

void Reducer::begin(const autograd::Run* run) {
  LOCKSTEP_CHECK(
      !join_ || has_step_ || (options_.micro_batches_per_rank == 1 && options_.weighting == Weighting::kEqual),
      "DistributedDataParallel: inside join, with {} micro-batches a rank{}, steps are made by backward(x, y, "
      "loss_fn): "
      "ranks that are out of data could not know of another kind",
      options_.micro_batches_per_rank, options_.weighting == Weighting::kEqual ? "" : " weighted by samples");
  // Several models in one backward make one step of the books.
  const bool joins = run && !has_step_ && std::ranges::any_of(*group_->reducers_, [&](const Reducer* each) {
                       return each->takes_part(*run);
                     });
  if (!joins) group_->traffic().begin_step();
  active_ = true;
  run_ = run;
  start_ = Clock::now();
  next_ = done_ = early_ = early_small_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.layout.parameters.size();
    bucket.work = bucket.hook_work = nullptr;
  }
  for (Slot& slot : slots_) slot.ready = slot.used = false;
}

void Reducer::begin_step(const Step& step) {
  step_ = step;
  has_step_ = true;
}

void Reducer::end_step() {
  if (!active_) begin(nullptr);  // no parameter took part on this rank
  finish();
}

// Makes sure that what counts for this parameter stands in the bucket.
void Reducer::settle(std::size_t parameter) {
  Slot& slot = slots_[parameter];
  if (slot.ready) return;
  slot.ready = true;
  Tensor grad = step_.sets ? step_.sets->finish(parameter) : slot.leaf.grad();
  if (step_.standing) grad = step_.standing->join(parameter, grad, step_.standing_factor);
  slot.used = grad.defined();
  if (!slot.used) {
    raw::fill(slot.home, -0.0);  // adding it changes nothing, not even the sign of a zero
  } else if (grad.raw_data() != slot.home.raw_data()) {
    if (grad.requires_grad()) {
      warn("DistributedDataParallel: create_graph",
           "DistributedDataParallel: gradients of backward with create_graph lose their history when they are averaged "
           "over the ranks, so they have no derivatives\ncall autograd::grad with create_graph inside the loss, and "
           "backward without");
    }
    raw::copy(grad, slot.home);
    if (slot.dtype == slot.home.dtype()) slot.leaf.set_grad(slot.home);
    ++copies_;
  }
  Bucket& bucket = buckets_[slot.bucket];
  set_element(bucket.tail, slot.used_bit, slot.used ? 1 : 0);
  if (--bucket.pending > 0) return;
  bucket.ready = seconds();
  trace_bucket(TraceKind::kBucketReady, slot.bucket, parameters_[parameter].first);
}

// `what`: the last parameter of a bucket that is ready, else its first one.
void Reducer::trace_bucket(TraceKind kind, std::size_t b, std::string_view what) const {
  trace_event(kind, what, TraceTime::now(),
              {.bytes = bytes_of(buckets_[b].memory), .id = static_cast<std::int64_t>(b)});
}

// Where other models share the ranks, each rank may launch them in another order: then none may wait for other ranks
// before it has launched all.
bool Reducer::is_early_enough(const Bucket& bucket) const {
  if (alone()) return true;
  if (hook_) return false;  // which starts as many operations as it likes
  return early_ < kInFlight && (bytes_of(bucket.memory) > kSmallBytes || early_small_ < kSmallInFlight);
}

// While backward runs. Strictly in order, so that all ranks do the same.
void Reducer::launch_early() {
  while (next_ < buckets_.size() && buckets_[next_].pending == 0 && is_early_enough(buckets_[next_])) {
    early_small_ += bytes_of(buckets_[next_].memory) <= kSmallBytes ? 1 : 0;
    ++early_;
    launch_next();
  }
}

// When backward is done: what it did not reach counts with what stands there.
void Reducer::launch_rest() {
  look_for_done();
  for (const Bucket& bucket : buckets_) {
    for (const std::size_t p : bucket.layout.parameters) settle(p);
  }
  while (next_ < buckets_.size()) launch_next();
}

void Reducer::launch_next() {
  start_own(next_);
  start_hook(next_);
  ++next_;
}

void Reducer::start_own(std::size_t b) {
  Bucket& bucket = buckets_[b];
  const auto set_tail = [&](Tail at, double value) { set_element(bucket.tail, at, value); };
  set_tail(kTailMicroBatches, static_cast<double>(step_.micro_batches));
  set_tail(kTailRows, static_cast<double>(step_.rows));
  set_tail(kTailLoss, step_.loss);
  set_tail(kTailStop, wants_stop_ ? 1 : 0);
  set_tail(kTailJoined, step_.joined ? 1 : 0);
  bucket.launched = seconds();
  raw::copy(bucket.tail, bucket.tail_place);
  trace_bucket(TraceKind::kBucketLaunched, b, parameters_[bucket.layout.parameters.front()].first);
  try {
    const PhaseGuard phase(*group_, Phase::kGradients);
    bucket.work = group_->all_reduce_scaled(bucket.own, step_.weighted ? 1 : 1.0 / nominal_micro_batches());
  } catch (Error& error) {
    explain(error, b, "launching ");
    throw;
  }
}

// Every model of this backward launches what is left, and only then is one of them waited for, all in the order in
// which they were made: whichever backward reached first on a rank, no two ranks wait for each other.
void Reducer::end_backward(autograd::Run& run) {
  const auto for_all = [this, &run](auto body) {
    for (Reducer* const each : *group_->reducers_) {
      if (each->takes_part(run)) body(*each);
    }
  };
  for_all([](Reducer& each) { each.launch_rest(); });
  run.at_end([for_all, lives = run_lives_.lock()] { for_all([](Reducer& each) { each.finish(); }); });
}

void Reducer::finish() {
  launch_rest();
  for (std::size_t b = 0; b < buckets_.size(); ++b) wait_for(b);
  take_results();
  ++steps_;
  abandon();
  if (after_step_) after_step_();
}

void Reducer::wait_for(std::size_t b) {
  Bucket& bucket = buckets_[b];
  try {
    const PhaseGuard phase(*group_, Phase::kGradients);
    if (bucket.work) bucket.work->wait();
    if (bucket.hook_work) bucket.hook_work->wait();
  } catch (Error& error) {
    drain();
    abandon();
    explain(error, b, "");
    throw;
  } catch (...) {
    drain();
    abandon();
    throw;
  }
  bucket.work = bucket.hook_work = nullptr;
  raw::copy(bucket.tail_place, bucket.tail);
  if (b == done_) mark_done();
}

// Marks the buckets in flight that are done by now, in the order of their launches. This does none of their
// work, which would delay backward.
void Reducer::look_for_done() {
  const auto is_done = [](const std::shared_ptr<Work>& work) { return !work || work->is_known_complete(); };
  while (done_ < next_ && is_done(buckets_[done_].work) && is_done(buckets_[done_].hook_work)) mark_done();
}

void Reducer::mark_done() {
  buckets_[done_].done = seconds();
  trace_bucket(TraceKind::kBucketDone, done_, parameters_[buckets_[done_].layout.parameters.front()].first);
  ++done_;
}

// The sum over all ranks of an element of the tail.
double Reducer::tail_sum(Tail at) const {
  const Bucket& first = buckets_.front();
  return get_element(first.tail, at) * (step_.weighted ? 1 : nominal_micro_batches());
}

void Reducer::take_results() {
  const int nominal = nominal_micro_batches();
  joined_ = static_cast<int>(std::lround(tail_sum(kTailJoined)));
  stop_requested_ = tail_sum(kTailStop) != 0;
  const int ran = static_cast<int>(std::lround(tail_sum(kTailMicroBatches)));
  const StepScale scale = step_.weighted ? StepScale(std::llround(tail_sum(kTailRows))) : StepScale(nominal, ran);
  // Those that are out of data may count as if their gradients were zero.
  const int idle = join_ && join_->divide_by_initial_world_size ? joined_ * nominal / group_->size() : 0;
  const double second = step_.weighted ? 1 : StepScale(nominal, ran + idle).second;
  // A sum over micro-batches was multiplied with this when it was launched; what a hook leaves is the mean over ranks.
  const double launched = step_.weighted ? 1 : 1.0 / nominal, had = hook_ ? 1.0 / group_->size() : launched;
  const double first = step_.weighted ? scale.first / had : launched / had;
  for (Slot& slot : slots_) {
    if (get_element(buckets_[slot.bucket].tail, slot.used_bit) == 0) continue;
    scale_gradient(slot.home, first);
    scale_gradient(slot.home, second);
    if (slot.dtype == slot.home.dtype()) {
      if (!slot.used) slot.leaf.set_grad(slot.home);
    } else {
      set_rounded(slot.leaf, slot.home);
      ++copies_;
    }
  }
  const Tensor loss = raw::clone(raw::select(buckets_.front().tail, 0, kTailLoss));
  if (step_.weighted) scale_gradient(loss, scale.first);
  scale_gradient(loss, scale.second);
  mean_loss_ = get_element(loss, 0);
}

void Reducer::explain(Error& error, std::size_t b, const char* doing) const {
  const bool late = dynamic_cast<const CommTimeout*>(&error) != nullptr;
  const std::string all = names(buckets_[b]);
  error.add_context(fmt::format("DistributedDataParallel: {}bucket {} of {} of step {}{}", doing, b, buckets_.size(),
                                steps_ + 1,
                                late ? " still misses other ranks' gradients of " + all : " (" + all + ")"));
}

// "fc2.bias, fc2.weight and 12 more"
std::string Reducer::names(const Bucket& bucket) const {
  constexpr std::size_t kShown = 3;
  const std::vector<std::size_t>& in = bucket.layout.parameters;
  std::string text;
  for (std::size_t k = 0; k < std::min(in.size(), kShown); ++k) text += (k > 0 ? ", " : "") + parameters_[in[k]].first;
  return in.size() > kShown ? fmt::format("{} and {} more", text, in.size() - kShown) : text;
}

void Reducer::fill(DistributedDataParallelStats& stats) const {
  std::int64_t bytes = 0;
  for (const Bucket& bucket : buckets_) {
    BucketStats& out = stats.buckets.emplace_back();
    out.bytes = bytes_of(bucket.memory);
    for (const std::size_t p : bucket.layout.parameters) out.parameters.push_back(parameters_[p].first);
    out.ready = bucket.ready;
    out.launched = bucket.launched;
    out.done = bucket.done;
    bytes += out.bytes;
  }
  stats.steps = steps_;
  stats.reduced_bytes = steps_ * bytes;
  stats.copies = copies_;
  for (const Slot& slot : slots_) stats.copies += autograd::gradient_copies(slot.leaf);
  const CommunicationOverlap overlap = communication_overlap(stats.buckets);
  stats.overlap = overlap.share();
  stats.overlap_bytes = overlap.byte_share();
}

std::vector<std::string> Reducer::unused() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < slots_.size() && steps_ > 0; ++p) {
    if (!slots_[p].used) names.push_back(parameters_[p].first);
  }
  return names;
}

}  // namespace lockstep::parallel
