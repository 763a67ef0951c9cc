// Watchers of a run's steps, such as a Recorder. Not installed.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// A step, as its watchers see it.
struct WatchedStep {
  bool is_of_user = false;       // the backward is the user's own: loss.backward()
  bool has_parameters = true;    // the optimizer steps this rank's parameters
  bool has_same_buffers = true;  // ranks have the same buffers after the step
};

// Is told of the steps of a run.
class StepWatcher {
 public:
  virtual void begin_step(const WatchedStep& step) = 0;  // before the first forward
  virtual void gradients_ready() = 0;                    // the gradients of the step are in grad()
  virtual void drop_step() = 0;                          // there was none: all ranks had joined

 protected:
  ~StepWatcher() = default;
};

// The watchers of a run.
class StepWatchers {
 public:
  void add(std::weak_ptr<StepWatcher> watcher) { watchers_.push_back(std::move(watcher)); }  // until it is destroyed
  void begin_step(const WatchedStep& step) const { tell(&StepWatcher::begin_step, step); }
  void gradients_ready() const { tell(&StepWatcher::gradients_ready); }
  void drop_step() const { tell(&StepWatcher::drop_step); }

 private:
  template <class Event, class... Args>
  void tell(Event event, const Args&... args) const {
    for (const auto& each : watchers_) {
      if (const auto watcher = each.lock()) (watcher.get()->*event)(args...);
    }
  }
  std::vector<std::weak_ptr<StepWatcher>> watchers_;
};

}  // namespace lockstep::parallel
