// The backend sim, whose collectives can be observed.
//
// It uses two groups of the engine of local: one for messages between the ranks' threads, one for all other
// operations. A collective begins with a header from each rank to all, which contains the call and the rank's clock.
// Then all_reduce, reduce_scatter and all_gather execute the steps of their plan, if there is one, and each rank
// computes the same simulated times. Collectives run in the order in which they were started, while a rank waits.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/trace.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/group_failure_internal.h"
#include "lockstep/parallel/simulate/hops.h"
#include "lockstep/parallel/simulate/simulate.h"

namespace lockstep::parallel {

class HopGroup;

class HopWork final : public GroupWork<HopGroup, HopWork> {
 public:
  HopWork(HopGroup* group, Call call, std::shared_ptr<Simulation> simulation)
      : GroupWork(group), call(std::move(call)), simulation(std::move(simulation)) {}
  bool is_known_complete() override { return !group; }
  // Only a wait advances the clock. Others complete the operation at times that differ between runs.
  void after_wait() const {
    if (simulation) simulation->wait_until(done_at);
  }

  struct Arriving {
    Hop hop;
    Tensor data;
  };
  const Call call;
  const std::shared_ptr<Simulation> simulation;  // may be null
  Tensor heads;                                  // (ranks, bytes of a header)
  std::shared_ptr<Work> under_way_heads, plain;
  bool agreed = false;
  HopPlan plan{Algorithm::kDirect, 1, 0};
  Tensor data;                  // the plan's elements: those of `call.out`, or a copy of the input of reduce_scatter
  int step = -1;                // the current step of the plan
  TraceTime step_began;         // start of the step, if traced
  std::int64_t step_sends = 0;  // bytes that this rank sends in the step
  std::vector<std::shared_ptr<Work>> messages;
  std::vector<Arriving> arriving;
  double done_at = 0;  // time of completion on the simulated clock
};

class HopGroup final : public Backend {
 public:
  HopGroup(const InitOptions& options, const Rendezvous& place);
  ~HopGroup() override;
  Ref<Storage> allocate(const Call& call, std::size_t bytes, Device device) override;
  void release_staging() override;
  void fail_group(const std::string& why) override;
  bool has_failed() override { return failure_ || plain_->has_failed() || messages_->has_failed(); }
  std::uint32_t step_failed(std::uint64_t next, const std::string& why) override;
  std::shared_ptr<Work> start(Call call) override;
  void record_traffic(const Call& call, Phase phase, TrafficStats& traffic) const override;

 private:
  friend class GroupWork<HopGroup, HopWork>;
  struct Head;
  std::shared_ptr<Work> start_transfer(Call call);
  void send_head(HopWork& work);
  bool wait_or_poll(Work& work, bool waits);
  bool advance(HopWork& work, bool waits);
  bool run_front(bool waits);
  void compare_heads(HopWork& work);
  void set_time(HopWork& work, std::vector<double> launched);
  std::optional<HopPlan> plan_of(const Call& call) const;
  void start_plan(HopWork& work);
  void end_plan(const HopWork& work);
  void start_step(HopWork& work);
  void finish_step(HopWork& work);
  void add_arrived(const HopWork& work);
  void wait(HopWork& work);
  bool poll(const HopWork& work);

  SimOptions options_;
  std::unique_ptr<Backend> messages_, plain_;
  std::deque<std::shared_ptr<HopWork>> queue_;
  std::vector<double> network_free_;  // time at which each rank's earlier collectives are complete
  GroupFailure failure_;              // why the group is unusable
};

}  // namespace lockstep::parallel
