// What the parts of the simulated runtime share.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cuda/simulator/simulator.h"

// When everything that was on a stream before has ended.
struct Moment {
  cudaStream_t stream;
  std::uint64_t given;  // to the stream by then
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
  double asked_again_at = 0;  // seconds: of work that has to wait for others, which is not asked all the time
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

// The entry of a call of the runtime: takes the mutex, counts the call, and knows whether it has to fail.
class Call {
 public:
  enum class Needs { kDevice, kDriver };  // a device that has not failed, or nothing of the kind
  explicit Call(const char* function, Needs needs = Needs::kDevice);
  // What the call answers, which the thread's cudaGetLastError tells as well.
  cudaError_t operator()(cudaError_t status) const;
  cudaError_t refused() const { return refused_; }

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  cudaError_t refused_;
};
#define ENTER()                           \
  const simulator::Call answer(__func__); \
  if (answer.refused() != cudaSuccess) return answer(answer.refused())

// Runs what the stream was given up to that many works. False: something has to come from elsewhere first.
bool run_until(CUstream_st& stream, std::uint64_t given);
// The same with patience.
void wait_until(CUstream_st& stream, std::uint64_t given);
void wait_for_device(int device);

// For calls that a capture forbids: spoils the captures that this thread would disturb, and says so.
cudaError_t disturb_captures();

}  // namespace simulator
