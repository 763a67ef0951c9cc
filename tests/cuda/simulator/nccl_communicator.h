// Communicators of the simulated NCCL, and what they do on streams. None of them blocks: an operation goes to its stream
// when the communicator is next asked how it is, and not before.
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

// What a rank says before the bytes, and another one expects.
struct Header {
  Kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;  // ncclNumOps: one of the communicator's own
  int root;
  std::size_t count;
  bool operator==(const Header&) const = default;
};

// To or from one rank.
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
  std::vector<Buffer> buffers = {};  // all that is read and written, on the device
  std::vector<unsigned char> staging = {};
  std::function<void()> finish = [] {};

  void send(const void* data, std::size_t bytes, int to) {
    sends.push_back({to, static_cast<unsigned char*>(const_cast<void*>(data)), bytes, header});
  }
  void receive(void* data, std::size_t bytes, int from) {
    receives.push_back({from, static_cast<unsigned char*>(data), bytes, header});
  }
  bool run();  // the stream's work
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
  bool is_asked_again = false;                                    // how it is, with nothing given since
  std::vector<std::shared_ptr<simulator::Operation>> given = {};  // and not launched yet
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

// What the thread's ncclGetLastError tells.
std::string& last_error();
ncclResult_t refuse(ncclResult_t status, const std::string& why);

// All that live.
std::map<ncclComm_t, std::shared_ptr<ncclComm>>& communicators();
std::shared_ptr<ncclComm> find(ncclComm_t comm);

// NCCL works on the communicator's device, and puts back the one that it found.
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

// Takes the operation into the thread's group, or to its communicator.
ncclResult_t submit(std::shared_ptr<Operation> operation);
// To their communicators, which will launch them.
ncclResult_t give(std::vector<std::shared_ptr<Operation>> operations);

// Where this host is and which GPU it means.
Gpu gpu_of(const cudaDeviceProp& properties);
// How it is; in progress, also where `advance` would find otherwise.
ncclResult_t state_of(const ncclComm& comm);
// Goes on with what the communicator was asked to do.
void advance(ncclComm& comm);
// The GPUs go on, whoever's they are: ranks of other processes may be waiting for any operation of this one.
void run_streams();

}  // namespace simulator
