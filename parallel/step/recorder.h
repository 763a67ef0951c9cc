/// \file
/// Records a training run, so that the program `lockstep-diff` can say where it first differs from another run. The two
/// runs may have different modes and numbers of ranks:
///
///     parallel::Recorder recorder(run, "record_a");  // while it exists, steps of `run` are recorded
///     for (...) { run.backward(x, y, loss_fn); optimizer.step(); }
///
///     $ lockstep-diff record_a record_b
///
/// Each rank writes a file of its own with a hash of each tensor: of the model's inputs, of every module's output and
/// of the gradient of its first input, of each parameter's gradient in each micro-batch and after the reduction, and of
/// all parameters and buffers before the first step and after every step. The hash is a sum over the elements, so the
/// hashes of the parts of a sharded parameter add up to that of the whole one, and so do those of tensor slices and of
/// activations that tensor parallelism has cut. Recording changes no bits.
///
/// Without a change of the program, the environment variable LOCKSTEP_RECORD names the directory, and
/// LOCKSTEP_RECORD_VALUES=1 adds the values; the second run of a process is then recorded in the subdirectory 2, and so
/// on. docs/first_difference.md says more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

/// Options of a Recorder.
struct RecorderOptions {
  bool values = false;  ///< also the values, so that lockstep-diff can name the first element that differs
  /// Paths of the modules to record, with all modules below them; '*' stands for any text without '.'. Empty: all.
  std::vector<std::string> modules = {};
  std::int64_t first_step = 0;  ///< the first step to record; steps count from 0, the construction of the Recorder
  std::int64_t last_step = -1;  ///< the last step to record; -1: no limit
};

/// Records the steps of a run while it exists. A step is one call of `run.backward(x, y, loss_fn)`, also inside
/// no_sync; or a forward of the module and `loss.backward()`, whose reduced gradients are recorded with
/// DistributedDataParallel and ShardedDataParallel only. Forwards without gradients are not recorded.
class Recorder {
 public:
  /// Creates the directory. Throws IoError if it cannot be written, or contains a record already. `run`'s module must
  /// outlive this object.
  template <class Mode>
  Recorder(Mode& run, const std::string& directory, const RecorderOptions& options = {})
      : Recorder(Source{run.module(), run.named_parameters(), run.group()}, directory, options) {
    watch(run.watchers());
  }
  /// For the constructors of runs: a Recorder if LOCKSTEP_RECORD is set, else null.
  template <class Mode>
  static std::shared_ptr<Recorder> from_environment(Mode& run) {
    const std::string directory = next_directory(all_ranks(run.module(), run.group()).get());
    return directory.empty() ? nullptr : std::make_shared<Recorder>(run, directory, environment_options());
  }
  /// Records the parameters after the last step. A failure is a warning.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

 private:
  friend class Parallel;
  template <class Mode>
  static StepWatchers& watchers_of(Mode& run) {
    return run.watchers();
  }
  struct Source {
    nn::Module& module;
    std::vector<ShardedParameter> parameters;
    std::shared_ptr<ProcessGroup> group;
  };
  Recorder(Source source, const std::string& directory, const RecorderOptions& options);
  void watch(StepWatchers& watchers) const;
  static std::shared_ptr<ProcessGroup> all_ranks(nn::Module& module, const std::shared_ptr<ProcessGroup>& group);
  static std::string next_directory(ProcessGroup* group);
  static RecorderOptions environment_options();

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::parallel
