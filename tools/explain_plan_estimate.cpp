// The memory, the bytes and the time of a step on a mesh, from the modules of its chain.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/explain_memory.h"
#include "tools/explain_plan_costs.h"

namespace par = lockstep::parallel;

namespace plan {
namespace {

constexpr double kHeaderBytes = 200;  // of a message between stages

// The units of ShardedDataParallel on a rank along pp: the root (embedding and head, which have one matrix if both are
// there), then the blocks.
UnitElements units_of(const std::vector<ChainModule>& chain,
                      const std::vector<std::pair<std::size_t, std::size_t>>& parts, std::int64_t shared) {
  UnitElements units = {0};
  int ends = 0;
  for (const auto& [begin, end] : parts) {
    for (std::size_t k = begin; k < end; ++k) {
      const bool is_end = k == 0 || k + 1 == chain.size();
      ends += is_end ? 1 : 0;
      if (is_end)
        units[0] += chain[k].parameters;
      else
        units.push_back(chain[k].parameters);
    }
  }
  if (ends == 2) units[0] -= shared;
  return units;
}

// A rank's computation, and its messages of parameters and gradients, which are sent meanwhile, one after another.
class Overlap {
 public:
  void compute(double seconds) { now_ += seconds; }
  double send(double seconds) { return sent_ = std::max(sent_, now_) + seconds; }  // returns when it is done
  void wait(double until) { now_ = std::max(now_, until); }
  void wait_for_all() { wait(sent_); }
  double now() const { return now_; }

 private:
  double now_ = 0, sent_ = 0;
};

class Estimator {
 public:
  Estimator(const Job& job, const Mesh& mesh);
  Estimate result();

 private:
  struct Rank {                                              // along pp
    std::vector<std::pair<std::size_t, std::size_t>> parts;  // modules of each chunk
    UnitElements units;
    double forward = 0, backward_input = 0, backward_weight = 0;  // seconds of a micro-batch, with messages
    double backward() const { return backward_input + backward_weight; }
  };

  double gather(double elements) const { return half_seconds(job_.link, gradient_ranks_, kItemBytes * elements); }
  double reduce(double elements) const { return (is_sharded() ? 1 : 2) * gather(elements); }
  bool is_sharded() const { return mesh_.fsdp > 1; }
  bool gathers_always() const { return is_sharded() && mesh_.stage == 3; }
  double optimizer(const Rank& rank) const;
  double reductions(const Rank& rank) const;
  double chunk_seconds(std::size_t begin, std::size_t end, bool is_forward, bool gathers) const;
  double first_gathers() const;
  void set_times(Rank& rank) const;
  double micro_batch(bool is_first, bool is_last) const;
  double on_one_stage() const;
  double in_stages();
  void set_memory(Estimate& estimate) const;
  void set_sent(Estimate& estimate) const;
  double boundary_bytes() const;
  double unit_bytes(std::int64_t elements) const;
  // Elements of the largest slice of the matrix that embedding and head share.
  std::int64_t shared_elements() const { return (job_.model.vocabulary + mesh_.tp - 1) / mesh_.tp * job_.model.width; }

  const Job& job_;
  const Mesh& mesh_;
  const std::vector<ChainModule> chain_;
  const int gradient_ranks_, micro_batches_;
  std::vector<std::size_t> begins_;
  std::vector<Rank> ranks_;
  std::vector<int> in_flight_ = {1};  // activations of a chunk, by rank
};

Estimator::Estimator(const Job& job, const Mesh& mesh)
    : job_(job), mesh_(mesh), chain_(chain_of(job, mesh)), gradient_ranks_(mesh.gradient_ranks()),
      micro_batches_(job.micro_batches / mesh.data_ranks()), begins_(balanced_stages(chain_, mesh.pp * mesh.chunks)) {
  for (int r = 0; r < mesh.pp; ++r) {
    Rank& rank = ranks_.emplace_back();
    for (auto s = static_cast<std::size_t>(r); s + 1 < begins_.size(); s += static_cast<std::size_t>(mesh.pp))
      rank.parts.emplace_back(begins_[s], begins_[s + 1]);
    rank.units = units_of(chain_, rank.parts, shared_elements());
    set_times(rank);
  }
}

double Estimator::optimizer(const Rank& rank) const {
  const auto all = static_cast<double>(std::accumulate(rank.units.begin(), rank.units.end(), std::int64_t{0}));
  return all * job_.speed.optimizer / (is_sharded() ? gradient_ranks_ : 1);
}

double Estimator::reductions(const Rank& rank) const {
  double seconds = 0;
  for (const std::int64_t elements : rank.units) seconds += elements > 0 ? reduce(static_cast<double>(elements)) : 0;
  return seconds;
}

// A forward or a backward of a chunk. If parameters are gathered, those of a module are while the module before computes.
double Estimator::chunk_seconds(std::size_t begin, std::size_t end, bool is_forward, bool gathers) const {
  Overlap overlap;
  const auto module = [&](std::size_t i) -> const ChainModule& { return chain_[is_forward ? begin + i : end - 1 - i]; };
  const auto start = [&](std::size_t i) {
    return gathers ? overlap.send(gather(static_cast<double>(module(i).parameters))) : 0;
  };
  double gathered = start(0);
  for (std::size_t i = 0; i < end - begin; ++i) {
    overlap.wait(gathered);
    if (i + 1 < end - begin) gathered = start(i + 1);
    const ChainModule& m = module(i);
    overlap.compute(is_forward ? m.forward + m.forward_messages
                               : m.backward_input + m.backward_weight + m.backward_messages);
  }
  return overlap.now();
}

// Stages 1 and 2 gather the parameters in the first forward of each model chunk, which the next stage waits for.
double Estimator::first_gathers() const {
  double seconds = 0;
  for (std::size_t s = 0; s + 1 < begins_.size() && is_sharded() && !gathers_always(); ++s)
    seconds +=
        chunk_seconds(begins_[s], begins_[s + 1], true, true) - chunk_seconds(begins_[s], begins_[s + 1], true, false);
  return seconds;
}

void Estimator::set_times(Rank& rank) const {
  for (const auto& [begin, end] : rank.parts) {
    double weights = 0;
    for (std::size_t k = begin; k < end; ++k) weights += chain_[k].backward_weight;
    rank.forward += chunk_seconds(begin, end, true, gathers_always());
    rank.backward_input += chunk_seconds(begin, end, false, gathers_always()) - weights;
    rank.backward_weight += weights;
  }
}

// Forward and backward of all modules on one rank, with gathers: of stage 3 always (the root and the last block only once),
// of stages 1 and 2 in the first forward of a step. In its last backward, a block's gradients are reduced when they are
// done, and those of the root at the end.
double Estimator::micro_batch(bool is_first, bool is_last) const {
  const UnitElements& units = ranks_[0].units;
  const std::size_t blocks = units.size() - 1;
  const auto root = static_cast<double>(units[0]), each = static_cast<double>(units.back());
  Overlap overlap;
  const bool gathers_forward = gathers_always() || (is_sharded() && is_first);
  const auto start = [&](bool gathers) { return gathers ? overlap.send(gather(each)) : 0; };
  const auto reduction = [&](double elements) {
    if (is_last && gradient_ranks_ > 1) overlap.send(reduce(elements));
  };
  if (gathers_forward) overlap.wait(overlap.send(gather(root)));
  double gathered = start(gathers_forward);
  overlap.compute(chain_[0].forward + chain_[0].forward_messages);
  for (std::size_t k = 1; k <= blocks; ++k) {
    overlap.wait(gathered);
    if (k < blocks) gathered = start(gathers_forward);
    overlap.compute(chain_[k].forward + chain_[k].forward_messages);
  }
  const ChainModule& head = chain_.back();
  overlap.compute(head.forward + head.forward_messages + head.backward_input + head.backward_weight +
                  head.backward_messages);
  for (std::size_t k = blocks; k >= 1; --k) {
    if (k < blocks) overlap.wait(gathered);
    if (k > 1) gathered = start(gathers_always());
    overlap.compute(chain_[k].backward_input + chain_[k].backward_weight + chain_[k].backward_messages);
    reduction(each);
  }
  reduction(root);
  overlap.wait_for_all();
  return overlap.now();
}

double Estimator::on_one_stage() const {
  const int m = micro_batches_;
  double seconds = optimizer(ranks_[0]);
  if (m == 1) return seconds + micro_batch(true, true);
  if (m > 2) seconds += (m - 2) * micro_batch(false, false);
  return seconds + micro_batch(true, false) + micro_batch(false, true);
}

double Estimator::unit_bytes(std::int64_t elements) const {
  constexpr double kLine = 64;
  const double bytes = kItemBytes * static_cast<double>(elements),
               multiple = is_sharded() ? kLine * gradient_ranks_ : 1;
  return std::ceil(bytes / multiple) * multiple;
}

double Estimator::boundary_bytes() const {
  return kItemBytes * static_cast<double>(job_.sequences * job_.model.context / mesh_.cp * job_.model.width) +
         kHeaderBytes;
}

// The schedule's table on a simulated clock, with equal stages. If one rank takes longer, all wait for it in each
// micro-batch but the first. Gradients are reduced after a rank's last backward. Stages share a matrix: each of the two
// ranks reduces its gradient over the pipelines; then the head sends it to the embedding's rank, which sends the sum back.
double Estimator::in_stages() {
  const double p = mesh_.pp;
  par::ScheduleCosts costs{.forward = 0,
                           .backward_input = 0,
                           .backward_weight = 0,
                           .link = {job_.link.latency, boundary_bytes() / job_.link.bandwidth}};
  double slowest = 0;
  for (const Rank& rank : ranks_) {
    costs.forward += rank.forward / p;
    costs.backward_input += rank.backward_input / p;
    costs.backward_weight += rank.backward_weight / p;
    slowest = std::max(slowest, rank.forward + rank.backward());
  }
  const double mean = costs.forward + costs.backward_input + costs.backward_weight;
  const auto table = par::ScheduleTable::make(mesh_.schedule, mesh_.pp, micro_batches_, mesh_.chunks);
  const par::Timeline timeline = par::simulate(table, costs);
  in_flight_.clear();
  double seconds = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    in_flight_.push_back(timeline.ranks[r].in_flight);
    const double last = timeline.ranks[r].actions.back().end;
    seconds = std::max(seconds, last + reductions(ranks_[r]) + optimizer(ranks_[r]));
  }
  const auto shared = static_cast<double>(shared_elements());
  return seconds + first_gathers() + (micro_batches_ - 1) * (slowest - mean) +
         2 * (gather(shared) + job_.link.seconds(kItemBytes * shared));
}

void Estimator::set_memory(Estimate& estimate) const {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    std::int64_t largest = 0;
    for (const auto& [begin, end] : ranks_[r].parts) {
      std::int64_t bytes = 0;
      for (std::size_t k = begin; k < end; ++k) bytes += chain_[k].activations;
      largest = std::max(largest, bytes);
    }
    const std::int64_t training =
        memory_of(is_sharded() ? mesh_.stage : 0, gradient_ranks_, micro_batches_, ranks_[r].units).total();
    const std::int64_t activations = in_flight_[r] * largest;
    if (training + activations <= estimate.memory) continue;
    estimate.memory = training + activations;
    estimate.activations = activations;
  }
}

// All-reduces of gradients; or reduce-scatters, and all-gathers of parameters, as ShardedDataParallel::plan has them, with
// its padding. Stage 3 gathers each unit for each forward and backward, on one stage the root and the last block only once.
void Estimator::set_sent(Estimate& estimate) const {
  const double share = (gradient_ranks_ - 1.0) / gradient_ranks_, m = micro_batches_;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    std::vector<double> units;  // bytes
    for (const std::int64_t elements : ranks_[r].units) units.push_back(unit_bytes(elements));
    const double all = std::accumulate(units.begin(), units.end(), 0.0);
    double gathered = all;
    if (gathers_always()) gathered = 2 * m * all;
    if (gathers_always() && mesh_.pp == 1) gathered -= m * (units.front() + units.back());
    SentBytes sent{.data = share * (all + gathered)};
    for (const auto& [begin, end] : ranks_[r].parts) {
      for (std::size_t k = begin; k < end; ++k) {
        sent.tensor += m * chain_[k].tensor_bytes;
        sent.context += m * chain_[k].context_bytes;
      }
      sent.pipeline += m * boundary_bytes() * ((begin > 0 ? 1 : 0) + (end < chain_.size() ? 1 : 0));
    }
    if (mesh_.pp > 1 && (r == 0 || r + 1 == ranks_.size())) {
      sent.pipeline += kItemBytes * static_cast<double>(shared_elements());
      sent.data += 2 * share * kItemBytes * static_cast<double>(shared_elements());
    }
    if (r == 0 || sent.total() > estimate.sent.total()) estimate.sent = sent;
  }
}

Estimate Estimator::result() {
  Estimate estimate{.seconds = mesh_.pp == 1 ? on_one_stage() : in_stages(), .sent = {}, .begins = begins_};
  set_memory(estimate);
  set_sent(estimate);
  double computing = 0;
  for (const ChainModule& each : chain_) computing += micro_batches_ * each.computing() / mesh_.pp;
  if (estimate.seconds > 0) estimate.idle = std::max(0.0, 1 - computing / estimate.seconds);
  return estimate;
}

}  // namespace

Estimate estimate(const Job& job, const Mesh& mesh) { return Estimator(job, mesh).result(); }

}  // namespace plan
