// Communicators of the simulated NCCL, and their operations on streams. None of them blocks: an operation is launched
// on its stream when the communicator is next asked for its state, and not before.
#pragma once

#include <nccl.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/simulator/nccl_reduction.h"
#include "tests/cuda/simulator/nccl_segment.h"
#include "tests/cuda/simulator/simulator.h"

namespace simulator {

enum class Kind : int { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kMessage };

// Sent by a rank before the bytes, and compared by the receiver.
struct Header {
  Kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;  // ncclNumOps: an operator of the communicator
  int root;
  std::size_t count;
  bool operator==(const Header&) const = default;
};

// A transfer to or from one rank.
struct Part {
  int peer;
  unsigned char* data;
  std::size_t bytes;
  Header header;
  bool has_begun = false;
  std::size_t done = 0;
  bool is_through() const { return has_begun && done == bytes; }
};

struct Buffer {
  const void* data;
  std::size_t bytes;
};

struct Operation {
  std::shared_ptr<ncclComm> comm;
  cudaStream_t stream;
  Header header;
  std::vector<Part> sends = {}, receives = {};
  std::vector<Buffer> buffers = {};  // all memory that is read and written on the device
  std::vector<unsigned char> staging = {};
  std::function<void()> finish = [] {};

  void send(const void* data, std::size_t bytes, int to) {
    sends.push_back({to, static_cast<unsigned char*>(const_cast<void*>(data)), bytes, header});
  }
  void receive(void* data, std::size_t bytes, int from) {
    receives.push_back({from, static_cast<unsigned char*>(data), bytes, header});
  }
  bool run();  // runs as work of the stream
  bool is_through() const;
  bool move();
  void end();
};

}  // namespace simulator

struct ncclComm {
  int rank, size, device;
  std::unique_ptr<simulator::Segment> segment;
  ncclResult_t failure = ncclSuccess;
  std::string why = {};
  bool has_met = false, is_finalized = false, is_aborted = false;
  bool is_asked_again = false;                                    // asked for its state, without a new operation since
  std::vector<std::shared_ptr<simulator::Operation>> given = {};  // not launched yet
  std::vector<std::shared_ptr<simulator::Operation>> under_way = {};
  std::map<int, simulator::Reduction> operators = {};
  int next_operator = ncclNumOps;
  std::map<void*, std::size_t> registered = {};
};

namespace simulator {

// The calls of a thread between ncclGroupStart and ncclGroupEnd.
struct Group {
  int depth = 0;
  ncclResult_t status = ncclSuccess;  // the first failure
  std::vector<std::shared_ptr<Operation>> operations = {};
};
Group& group();

// The result of the thread's ncclGetLastError.
std::string& last_error();
ncclResult_t refuse(ncclResult_t status, const std::string& why);

// All communicators that exist.
std::map<ncclComm_t, std::shared_ptr<ncclComm>>& communicators();
std::shared_ptr<ncclComm> find(ncclComm_t comm);

// Makes the communicator's device current, and restores the previous one, as NCCL does.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(current_device()) { change(device); }
  ~OnDevice() { change(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  static void change(int device) {
    if (current_device() != device) static_cast<void>(cudaSetDevice(device));
  }
  int before_;
};

// Adds the operation to the thread's group, or to its communicator.
ncclResult_t submit(std::shared_ptr<Operation> operation);
// Adds operations to their communicators, which will launch them.
ncclResult_t give(std::vector<std::shared_ptr<Operation>> operations);

// Identifies the GPU on this host.
Gpu gpu_of(const cudaDeviceProp& properties);
// The state of a communicator; in progress even where `advance` would find it ready.
ncclResult_t state_of(const ncclComm& comm);
// Continues the pending work of the communicator.
void advance(ncclComm& comm);
// Runs all GPUs: ranks of other processes may be waiting for any operation of this one.
void run_streams();

}  // namespace simulator
