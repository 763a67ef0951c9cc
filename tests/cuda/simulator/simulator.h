// CUDA for machines without a GPU: the functions of NVIDIA's libraries that tensor/cuda/ and the backend nccl call,
// run by the host as CUDA documents them. Work on a stream runs as late as possible (when a caller waits for it), only
// work on a device can access its memory, and calls that CUDA forbids are refused. So a missing wait, or a pointer
// used on the wrong side, fails here every time, not only sometimes.
//
// The variable LOCKSTEP_SIMULATED_CUDA describes the machine: "devices=2,memory=64M,driver=0,fences=1". Tests that
// link the simulator set everything else through `settings()`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace simulator {

// One step of a stream's work. False: it waits for another process or thread, and must be called again.
using Work = std::function<bool()>;

struct Settings {
  int devices = 4;
  std::size_t memory = std::size_t{1} << 30;  // of each device, in bytes
  int driver = 13000;                         // its version; 0: not installed
  bool fences = false;                        // a kernel that reads behind a block ends the process; slow
  // Function calls that will fail: "cudaMallocAsync" -> {successful calls before the failure, its status}.
  struct Failure {
    int after = 0;
    int status = 0;  // in the enum of the function's library
  };
  std::map<std::string, Failure> failures = {};
};
Settings& settings();

// Protects the simulator's state: every call of the libraries holds it, and a waiting call releases it.
std::recursive_mutex& mutex();

// Appends `work` to the stream. Returns CUDA's error if the stream belongs to another device than the thread's current
// one, or if the device has failed before. In a capture the work becomes part of the graph.
cudaError_t enqueue(cudaStream_t stream, Work work);
bool is_captured(cudaStream_t stream);

// Returns the failure that a test has set for this function, once, or success (0) while `settings` lets calls pass.
int take_failure(const char* function);

// True if all bytes are allocated memory of one device.
bool is_device_memory(const void* data, std::size_t bytes);
void* allocate_on(int device, std::size_t bytes);  // null: there is no room
void free_on_device(void* data);                   // does not wait
int device_of(cudaStream_t stream);

// Makes the memory of a device accessible while it lives. Work of a stream can access its own device.
class Open {
 public:
  explicit Open(int device);
  ~Open();
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  int device_;
};

// The thread's current device.
int current_device();
// Makes all later calls that concern the device fail with `status`, as after a fault of a kernel.
void break_device(int device, cudaError_t status);
// Number of calls of the runtime by name: "cudaLaunchKernel", "cudaMemcpyAsync", ...
std::map<std::string, std::int64_t>& calls();

// Runs `thread` for every thread of every block.
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& thread);

// Ends the process after a mistake of the host that has no status: an overwritten canary, or threads of a block that
// wait at different barriers.
[[noreturn]] void give_up(const std::string& why);

}  // namespace simulator
