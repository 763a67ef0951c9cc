// A thread that runs tasks for its replica, one at a time. Not installed.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/tensor/callback.h"

namespace lockstep::parallel {

class ReplicaWorker {
 public:
  ReplicaWorker() : thread_([this] { loop(); }) {}
  ~ReplicaWorker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  ReplicaWorker(const ReplicaWorker&) = delete;
  ReplicaWorker& operator=(const ReplicaWorker&) = delete;

  // Starts `task`, which must live until `wait` returns.
  void start(const Callback<void()>* task) {
    {
      const std::lock_guard lock(mutex_);
      task_ = task;
    }
    wake_.notify_all();
  }
  // Waits for the task. Returns its exception, null if there was none.
  std::exception_ptr wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return task_ == nullptr; });
    return std::exchange(error_, nullptr);
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || task_ != nullptr; });
      if (stop_) return;
      const Callback<void()>* const task = task_;
      lock.unlock();
      std::exception_ptr error;
      try {
        (*task)();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      task_ = nullptr;
      wake_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  const Callback<void()>* task_ = nullptr;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::parallel
