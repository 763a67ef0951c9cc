// CUDA for machines without a GPU: what tensor/cuda/ and the backend nccl call of NVIDIA's libraries, done by the host as
// CUDA documents it. What is given to a stream runs as late as can be (when somebody waits for it), memory of a device can
// only be touched by what runs on that device, and calls that CUDA forbids are refused. So a wait that was forgotten, or a
// pointer used on the wrong side, fails here every time, and not once in a while.
//
// The variable LOCKSTEP_SIMULATED_CUDA describes the machine: "devices=2,memory=64M,driver=0,fences=1". Everything else is set
// through `settings()` by tests that link the simulator.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace simulator {

// What a stream does in one step. False: it has to wait for another process or thread, and is to be called again.
using Work = std::function<bool()>;

struct Settings {
  int devices = 4;
  std::size_t memory = std::size_t{1} << 30;  // of each device, in bytes
  int driver = 13000;                         // its version; 0: none is installed
  bool fences = false;                        // behind every block: a kernel that reads on ends the process. Costs time
  // The next calls of a function that fail: "cudaMallocAsync" -> {after how many more calls, with what}.
  struct Failure {
    int after = 0;
    int status = 0;  // of the function's own library
  };
  std::map<std::string, Failure> failures = {};
};
Settings& settings();

// Of everything here: held by every call of the libraries, and given up by those that wait.
std::recursive_mutex& mutex();

// Takes `work` behind everything that was given to the stream before. As a CUDA call would, answers with what is wrong:
// the stream is another device's than the thread's current one, the device has failed before. In a capture the work
// becomes part of the graph.
cudaError_t enqueue(cudaStream_t stream, Work work);
bool is_captured(cudaStream_t stream);

// What a test has set for this function, or success (0). Once, and not while `settings` lets calls pass.
int take_failure(const char* function);

// Whether all bytes are allocated memory of one device.
bool is_device_memory(const void* data, std::size_t bytes);
void* allocate_on(int device, std::size_t bytes);  // null: there is no room
void free_on_device(void* data);                   // waits for nothing
int device_of(cudaStream_t stream);

// While it lives, the memory of a device may be touched; work of a stream has that of its own device open.
class Open {
 public:
  explicit Open(int device);
  ~Open();
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  int device_;
};

// What the thread's current device is.
int current_device();
// From now on all calls that concern the device fail with `status`, as after a fault of a kernel.
void break_device(int device, cudaError_t status);
// How many calls of the runtime were made, by name: "cudaLaunchKernel", "cudaMemcpyAsync", ...
std::map<std::string, std::int64_t>& calls();

// Runs `thread` for every thread of every block; `place` is told first which one it is.
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& thread);

// Where the host itself is wrong (a canary was overwritten, threads of a block wait for different things), the process
// ends: there is no status for that.
[[noreturn]] void give_up(const std::string& why);

}  // namespace simulator
