// Shared by the parts of the simulated runtime.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cuda/simulator/simulator.h"

// A position in a stream: reached when all earlier work has ended.
struct Moment {
  cudaStream_t stream;
  std::uint64_t given;  // works given to the stream by then
  bool reached = false;
  double seconds = 0;
};

struct CUgraph_st {
  int device;
  std::vector<simulator::Work> works;
};

struct CUgraphExec_st {
  CUgraph_st graph;
};

struct Capture {
  std::thread::id thread;
  cudaStreamCaptureMode mode;
  std::unique_ptr<CUgraph_st> graph;
  cudaError_t spoiled = cudaSuccess;
};

struct CUstream_st {
  int device;
  std::deque<simulator::Work> queue = {};
  std::uint64_t given = 0, done = 0;
  double asked_again_at = 0;  // in seconds; limits how often work that waits for others is tried
  std::unique_ptr<Capture> capture = {};
};

struct CUevent_st {
  int device;
  bool has_time;
  std::shared_ptr<Moment> moment = {};  // null: never recorded
};

namespace simulator {

struct DeviceState {
  std::vector<std::unique_ptr<CUstream_st>> streams = {};
  cudaError_t broken = cudaSuccess;
};
DeviceState& device_state(int device);

// The entry of a call of the runtime: takes the mutex, counts the call, and fails if a test requested it.
class Call {
 public:
  enum class Needs { kDevice, kDriver };  // kDevice: a device that has not failed
  explicit Call(const char* function, Needs needs = Needs::kDevice);
  // Returns `status`, and records it for the thread's cudaGetLastError.
  cudaError_t operator()(cudaError_t status) const;
  cudaError_t refused() const { return refused_; }

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  cudaError_t refused_;
};
#define ENTER()                           \
  const simulator::Call answer(__func__); \
  if (answer.refused() != cudaSuccess) return answer(answer.refused())

// Runs the first `given` works of the stream. False: a work waits for another process or thread.
bool run_until(CUstream_st& stream, std::uint64_t given);
// The same, and waits until it succeeds.
void wait_until(CUstream_st& stream, std::uint64_t given);
void wait_for_device(int device);

// For calls that a capture forbids: invalidates the captures that this thread would disturb, and returns the error.
cudaError_t disturb_captures();

}  // namespace simulator
