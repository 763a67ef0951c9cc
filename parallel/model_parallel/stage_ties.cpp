#include "lockstep/parallel/model_parallel/stage_ties_internal.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

StageTies::StageTies(const Stages& stages) : rank_(stages.rank), sets_({}) {
  for (std::size_t k = 0; k < stages.chain.size(); ++k) {
    const int stage = stages.stage_of(k);
    for (const auto& [name, parameter] : stages.chain[k].module->named_parameters()) {
      auto tie = std::ranges::find(ties_, parameter, &Tie::parameter);
      if (tie == ties_.end())
        tie =
            ties_.insert(tie, {.parameter = parameter, .name = name, .shape = parameter.master().shape(), .users = {}});
      tie->users.push_back({.link = k, .rank = stages.rank_of(stage), .chunk = stages.chunk_of(stage)});
    }
  }
  std::erase_if(ties_, [](const Tie& tie) { return tie.users.size() == 1; });
  std::vector<int> chunk_of;
  for (Tie& tie : ties_) {
    bool is_first = true;  // of this rank's: it uses the parameter itself
    for (User& user : tie.users) {
      if (user.rank != rank_ || std::exchange(is_first, false)) continue;
      user.alias = aliases_.size();
      aliases_.emplace_back(Tensor());
      chunk_of.push_back(user.chunk);
    }
  }
  sets_ = GradientSets(aliases_, chunk_of, stages.chunks());
}

bool StageTies::has(const nn::Parameter& parameter) const {
  return std::ranges::find(ties_, parameter, &Tie::parameter) != ties_.end();
}

void StageTies::begin_step() {
  views_.clear();
  for (const Tie& tie : ties_) {
    for (const User& user : tie.users) {
      if (user.alias == kNone) continue;
      const Tensor& tensor = tie.parameter.master();
      aliases_[user.alias].set_master(tensor.detach().requires_grad_(tensor.requires_grad()));
    }
  }
  sets_.clear();
}

const nn::ReplicaView* StageTies::enter(std::size_t link, const nn::ReplicaView* view) {
  nn::ReplicaView* own = nullptr;
  for (const Tie& tie : ties_) {
    for (const User& user : tie.users) {
      if (user.link != link || user.alias == kNone) continue;
      if (!own)
        own = views_.emplace_back(view ? std::make_unique<nn::ReplicaView>(*view) : std::make_unique<nn::ReplicaView>())
                  .get();
      own->set(tie.parameter.id(), aliases_[user.alias].master());
    }
  }
  return own;
}

namespace {

// A gradient sum that another rank may not have.
void send_sum(ProcessGroup& group, int to, const Tensor& sum, const std::string& name) {
  const std::int64_t is_defined = sum.defined() ? 1 : 0;
  group.send(raw::from_bytes(&is_defined, {1}, kInt64), to, 0, {.name = name})->wait();
  if (sum.defined()) group.send(sum, to, 0, {.phase = Phase::kGradients, .name = name})->wait();
}

Tensor receive_sum(ProcessGroup& group, int from, const Shape& shape, const TensorOptions& options,
                   const std::string& name) {
  const Tensor is_defined = raw::empty({1}, {.dtype = kInt64});
  group.recv(is_defined, from, 0, {.name = name})->wait();
  if (is_defined.item<std::int64_t>() == 0) return {};
  const Tensor sum = raw::empty(shape, options);
  group.recv(sum, from, 0, {.phase = Phase::kGradients, .name = name})->wait();
  return sum;
}

TensorOptions sum_options(const nn::Parameter& parameter) {
  return {.dtype = sum_dtype(parameter.master().dtype()), .device = parameter.master().device()};
}

}  // namespace

bool StageTies::is_trained_here(const Tie& tie) const {
  const bool is_here = std::ranges::any_of(tie.users, [&](const User& user) { return user.rank == rank_; });
  return is_here && tie.parameter.master().requires_grad();
}

void StageTies::add_up_sums(GradientSets& sets, ProcessGroup* stages, ProcessGroup* data) {
  for (Tie& tie : ties_) {
    if (!is_trained_here(tie)) continue;
    const std::size_t position = sets.position(tie.parameter);
    for (User& user : tie.users) {
      if (user.rank == rank_) user.sum = user.alias == kNone ? sets.finish(position) : sets_.finish(user.alias);
    }
  }
  if (data && data->size() > 1) reduce_sums(*data);
  for (Tie& tie : ties_) {
    if (!is_trained_here(tie)) continue;
    Tensor total = add_up(tie, stages);
    if (total.defined() && data && data->rank() > 0) total = raw::full(total.shape(), -0.0, total.options());
    sets.put(sets.position(tie.parameter), total);
    for (User& user : tie.users) user.sum = Tensor();
  }
}

// Adds the sums of the ranks that have the same modules. A sum stays undefined if none of them has one.
void StageTies::reduce_sums(ProcessGroup& data) {
  std::vector<std::pair<Tie*, User*>> own;
  std::vector<std::int64_t> defined;
  for (Tie& tie : ties_) {
    if (!is_trained_here(tie)) continue;
    for (User& user : tie.users) {
      if (user.rank != rank_) continue;
      own.emplace_back(&tie, &user);
      defined.push_back(user.sum.defined() ? 1 : 0);
    }
  }
  if (own.empty()) return;
  const Tensor ranks = raw::from_bytes(defined.data(), {static_cast<std::int64_t>(defined.size())}, kInt64);
  data.all_reduce(ranks, ReduceOp::kSum, {.name = "shared parameters"})->wait();
  for (std::size_t k = 0; k < own.size(); ++k) {
    if (ranks.span<std::int64_t>()[k] == 0) continue;
    const auto& [tie, user] = own[k];
    if (!user->sum.defined()) user->sum = raw::full(tie->shape, -0.0, sum_options(tie->parameter));
    data.all_reduce(user->sum, ReduceOp::kSum, {.phase = Phase::kGradients, .name = tie->name})->wait();
  }
}

// The sum so far goes from rank to rank, to the rank of the first module; from there the total goes to all of them.
Tensor StageTies::add_up(const Tie& tie, ProcessGroup* stages) {
  const TensorOptions options = sum_options(tie.parameter);
  Tensor total;
  for (std::size_t u = tie.users.size(); u-- > 0;) {
    const User& user = tie.users[u];
    const int before = u + 1 < tie.users.size() ? tie.users[u + 1].rank : user.rank;
    if (before == rank_ && user.rank != rank_) send_sum(*stages, user.rank, total, tie.name);
    if (user.rank != rank_) continue;
    if (before != rank_) total = receive_sum(*stages, before, tie.shape, options, tie.name);
    total = lockstep::parallel::add_up(std::move(total), user.sum);
  }
  const int first = tie.users[0].rank;
  std::set<int> others;
  for (const User& user : tie.users) others.insert(user.rank);
  others.erase(first);
  if (rank_ != first) total = receive_sum(*stages, first, tie.shape, options, tie.name);
  for (const int rank : others) {
    if (rank_ == first) send_sum(*stages, rank, total, tie.name);
  }
  return total;
}

}  // namespace lockstep::parallel
