// Runners of modules whose forward several ranks compute together. Not installed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/nn/parameter.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

class SharedRunner : public nn::ModuleRunner {
 public:
  // Says what the ranks share: kModel, the slices of modules; kBatch, statistics over micro-batches that run together.
  enum class Part : std::uint8_t { kSequence, kModel, kStages, kBatch };
  // A null group stands for this process alone.
  SharedRunner(Part part, std::shared_ptr<ProcessGroup> group, std::shared_ptr<ProcessGroup> mesh = nullptr)
      : part(part), group(std::move(group)), mesh(std::move(mesh)) {}

  const Part part;
  const std::shared_ptr<ProcessGroup> group;
  const std::shared_ptr<ProcessGroup> mesh;    // all ranks of the mesh of which `group` is an axis; null: not known
  std::int64_t runs() const { return runs_; }  // so far
  // The whole parameters and buffers whose values all ranks of `group` have had from rank 0 since the runner was made.
  virtual std::span<const nn::TensorHandle> shared_values() const { return {}; }

  // How the module's activations are cut over the ranks of `group`. The input of a layer that opens a region is whole, and
  // its output has this rank's columns; the other way round for one that closes it.
  virtual bool opens_region() const { return false; }
  virtual bool closes_region() const { return false; }
  struct Columns {
    std::int64_t first, count, of;  // columns [first, first + count) of the last dimension
  };
  // The columns of an output that is cut without a region; null: it is whole, or has this rank's positions.
  virtual std::optional<Columns> output_columns() const { return std::nullopt; }

 protected:
  void count_run() const { ++runs_; }

 private:
  mutable std::atomic<std::int64_t> runs_ = 0;
};

// The runners of `module` and all below it.
std::vector<std::shared_ptr<const SharedRunner>> shared_runners(nn::Module& module);
// One by which several ranks share the model, with a known mesh if there is one; null: none.
std::shared_ptr<const SharedRunner> model_runner(nn::Module& module);
// Their groups, each once.
std::vector<ProcessGroup*> runner_groups(nn::Module& module);
std::vector<ProcessGroup*> runner_groups(nn::Module& module, SharedRunner::Part part);
// Whether each rank has a part of the model's parameters: slices or stages.
bool divides_model(nn::Module& module);
// The traffic of a mode whose model has such runners: of the mode's group, and of theirs.
class RunnerTraffic {
 public:
  // The counters of `own`, null without a group of the mode, and of the runners' groups. With other groups than `own`,
  // the result is a copy, which the next call replaces.
  const TrafficStats& with(nn::Module& module, TrafficStats* own);
  // Opens and closes a step of these counters (TrafficStats).
  static void open_step(nn::Module& module, TrafficStats* own);
  static void close_step(nn::Module& module, TrafficStats* own);

 private:
  TrafficStats sum_;
};

// Throws InvalidArgument, naming `mode`, unless `group` (null: this process alone) fits each runner's group.
//
// It has all ranks that share a sequence, since each has a part of the gradients, at equal distances and in their order:
// then a rank's micro-batches have numbers that depend on its sequence block and its place among the others, and not on
// the mesh. It has the ranks of batch statistics. And it has one of the ranks that share a model, since the others have other parameters. All parts of a model
// are shared by the same ranks.
void require_runner_ranks(const char* mode, nn::Module& module, const ProcessGroup* group);

}  // namespace lockstep::parallel
