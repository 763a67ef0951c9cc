// Groups of a subset of a group's ranks.
#include <algorithm>
#include <exception>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/rendezvous/formation_watch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

// Makes the watch before any rank waits for another. Null without a store; throws CommError if the store has ended.
std::shared_ptr<FormationWatch> ProcessGroup::watch_split(std::uint64_t number) const {
  if (!place_.store || size() == 1) return nullptr;
  const auto store = std::make_shared<PrefixStore>(fmt::format("split/{}/formation/", number), place_.store);
  const bool is_first = place_.global_rank(rank()) == 0;
  auto watch = std::make_shared<FormationWatch>(store, "split", rank(), size(), is_first);
  watch->begin();
  return watch;
}

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key) {
  const std::int64_t own[2] = {color, key};
  const Tensor all = raw::empty({size(), 2}, {.dtype = kInt64});
  const std::uint64_t number = splits_++;
  std::shared_ptr<FormationWatch> watch;
  std::exception_ptr without_store;
  try {
    watch = watch_split(number);
  } catch (const CommError&) {  // the all_gather below may name the reason
    without_store = std::current_exception();
  }
  try {
    const std::jthread answers = formation_answers(watch.get());
    all_gather(all, raw::from_bytes(own, {2}, kInt64))->wait();
  } catch (const Error& error) {
    if (watch) watch->pass_on(error);
    throw;
  }
  if (without_store) std::rethrow_exception(without_store);
  if (color < 0) {
    if (watch) watch->finish();
    return nullptr;
  }
  const std::span<const std::int64_t> choices = all.span<std::int64_t>();
  std::vector<std::pair<std::int64_t, int>> members;  // (key, rank in this group)
  for (int r = 0; r < size(); ++r) {
    if (choices[static_cast<std::size_t>(2 * r)] == color)
      members.emplace_back(choices[static_cast<std::size_t>(2 * r + 1)], r);
  }
  std::ranges::sort(members);
  const auto self = std::ranges::find(members, rank(), &std::pair<std::int64_t, int>::second);
  Rendezvous place{.rank = static_cast<int>(self - members.begin()),
                   .size = static_cast<int>(members.size()),
                   .address = place_.address,
                   .watch = std::move(watch),
                   .liveness = backend_ ? backend_->liveness() : nullptr};
  for (const auto& [ignored, member] : members) place.members.push_back(place_.global_rank(member));
  if (place_.store)
    place.store = std::make_shared<PrefixStore>(fmt::format("split/{}/{}/", number, color), place_.store);
  auto part = std::make_shared<ProcessGroup>(std::move(place), options_);
  part->rank_state_ = rank_state_;
  part->trace_group_ = static_cast<std::uint16_t>(31 * trace_group_ + 7 * static_cast<int>(number) + color % 1024 + 1);
  return part;
}

std::shared_ptr<ProcessGroup> ProcessGroup::duplicate() {
  std::shared_ptr<ProcessGroup> copy = split(0, rank());
  copy->traffic_ = traffic_;
  copy->attachments_ = attachments_;
  return copy;
}

}  // namespace lockstep::parallel
