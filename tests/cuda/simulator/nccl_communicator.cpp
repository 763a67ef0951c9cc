#include "tests/cuda/simulator/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <utility>

#include "tests/cuda/simulator/runtime_state.h"

namespace simulator {
namespace {

std::string text_of(const Header& header) {
  constexpr const char* kNames[] = {"all_reduce", "reduce",     "reduce_scatter",
                                    "broadcast",  "all_gather", "send or receive"};
  return std::string(kNames[static_cast<int>(header.kind)]) + " (count " + std::to_string(header.count) + ", type " +
         std::to_string(header.type) + ", operator " + std::to_string(header.op) + ", root " +
         std::to_string(header.root) + ")";
}

// Returns false if nothing moved, like `pull`.
bool push(Part& part, Ring& ring) {
  const bool begins = !part.has_begun && ring.room() >= sizeof(Header);
  if (begins) ring.write(&part.header, sizeof(Header));
  part.has_begun |= begins;
  if (!part.has_begun) return false;
  const std::size_t bytes = std::min(ring.room(), part.bytes - part.done);
  ring.write(part.data + part.done, bytes);
  part.done += bytes;
  return begins || bytes > 0;
}

bool pull(Part& part, Ring& ring, int rank) {
  const bool begins = !part.has_begun && ring.filled() >= sizeof(Header);
  if (begins) {
    Header theirs;
    ring.read(&theirs, sizeof(Header));
    if (theirs != part.header)
      give_up("nccl: rank " + std::to_string(part.peer) + " does " + text_of(theirs) + ", and rank " +
              std::to_string(rank) + " does " + text_of(part.header));
    part.has_begun = true;
  }
  if (!part.has_begun) return false;
  const std::size_t bytes = std::min(ring.filled(), part.bytes - part.done);
  ring.read(part.data + part.done, bytes);
  part.done += bytes;
  return begins || bytes > 0;
}

void launch(ncclComm& comm) {
  if (comm.given.empty()) return;
  const OnDevice device(comm.device);
  for (const auto& operation : std::exchange(comm.given, {})) {
    if (!comm.under_way.empty() && comm.under_way.back()->stream != operation->stream)
      give_up("nccl: a communicator on two streams at a time");
    const cudaError_t status = enqueue(operation->stream, [operation] { return operation->run(); });
    if (status == cudaSuccess) {
      comm.under_way.push_back(operation);
    } else {
      comm.failure = ncclUnhandledCudaError;
      comm.why = cudaGetErrorString(status);
    }
  }
}

// Called when all ranks are present: no two may have the same GPU.
void look_for_twins(ncclComm& comm) {
  for (int rank = 0; rank < comm.size; ++rank) {
    for (int other = 0; other < rank; ++other) {
      if (comm.segment->gpu(rank) != comm.segment->gpu(other)) continue;
      comm.failure = ncclInvalidUsage;
      comm.why = "Duplicate GPU detected : rank " + std::to_string(other) + " and rank " + std::to_string(rank) +
                 " both on CUDA device " + std::to_string(comm.device);
    }
  }
}

}  // namespace

Group& group() {
  thread_local Group instance;
  return instance;
}

std::string& last_error() {
  thread_local std::string instance;
  return instance;
}

ncclResult_t refuse(ncclResult_t status, const std::string& why) {
  last_error() = why;
  return status;
}

// --- operations -----------------------------------------------------------------------------------------------------

bool Operation::run() {
  if (comm->is_aborted) return true;
  const bool is_broken = device_state(comm->device).broken != cudaSuccess;
  const auto is_there = [](const Buffer& buffer) { return is_device_memory(buffer.data, buffer.bytes); };
  if (is_broken || !std::all_of(buffers.begin(), buffers.end(), is_there)) {
    if (!is_broken) break_device(comm->device, cudaErrorIllegalAddress);
    end();
    return true;
  }
  while (!is_through()) {
    if (!move()) return false;
  }
  finish();
  end();
  return true;
}

bool Operation::is_through() const {
  const auto through = [](const Part& part) { return part.is_through(); };
  return std::all_of(sends.begin(), sends.end(), through) && std::all_of(receives.begin(), receives.end(), through);
}

// One pass over all parts; parts with the same peer move in order.
bool Operation::move() {
  bool has_moved = false;
  const auto pass = [&](std::vector<Part>& parts, auto step) {
    std::vector<bool> is_busy(static_cast<std::size_t>(comm->size));
    for (Part& part : parts) {
      const auto peer = static_cast<std::size_t>(part.peer);
      if (part.is_through() || is_busy[peer]) continue;
      has_moved |= step(part);
      is_busy[peer] = !part.is_through();
    }
  };
  pass(sends, [&](Part& part) { return push(part, comm->segment->ring(comm->rank, part.peer)); });
  pass(receives, [&](Part& part) { return pull(part, comm->segment->ring(part.peer, comm->rank), comm->rank); });
  return has_moved;
}

void Operation::end() {
  std::erase_if(comm->under_way, [this](const auto& other) { return other.get() == this; });
}

ncclResult_t give(std::vector<std::shared_ptr<Operation>> operations) {
  for (auto& operation : operations) {
    ncclComm& comm = *operation->comm;
    comm.is_asked_again = false;
    if (!comm.is_aborted) comm.given.push_back(std::move(operation));
  }
  return operations.empty() ? ncclSuccess : ncclInProgress;
}

ncclResult_t submit(std::shared_ptr<Operation> operation) {
  if (group().depth == 0) return give({std::move(operation)});
  const auto is_same = [&](const auto& other) {
    return other->header.kind == Kind::kMessage && other->comm == operation->comm && other->stream == operation->stream;
  };
  const auto found = std::find_if(group().operations.begin(), group().operations.end(), is_same);
  if (operation->header.kind != Kind::kMessage || found == group().operations.end()) {
    group().operations.push_back(std::move(operation));
    return ncclSuccess;
  }
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append((*found)->sends, operation->sends);
  append((*found)->receives, operation->receives);
  append((*found)->buffers, operation->buffers);
  return ncclSuccess;
}

// --- communicators --------------------------------------------------------------------------------------------------

std::map<ncclComm_t, std::shared_ptr<ncclComm>>& communicators() {
  static auto* const instance = new std::map<ncclComm_t, std::shared_ptr<ncclComm>>;
  return *instance;
}

std::shared_ptr<ncclComm> find(ncclComm_t comm) {
  if (!comm) return nullptr;
  const auto found = communicators().find(comm);
  if (found == communicators().end()) give_up("nccl: a communicator is used that has been destroyed or aborted");
  return found->second;
}

Gpu gpu_of(const cudaDeviceProp& properties) {
  char name[HOST_NAME_MAX + 1] = {};
  static_cast<void>(gethostname(name, sizeof(name) - 1));
  const char* const given = std::getenv("NCCL_HOSTID");
  Gpu gpu = {.host = std::hash<std::string>()(given ? given : name), .uuid = {}};
  std::copy(std::begin(properties.uuid.bytes), std::end(properties.uuid.bytes), gpu.uuid.begin());
  return gpu;
}

ncclResult_t state_of(const ncclComm& comm) {
  if (comm.failure != ncclSuccess) return refuse(comm.failure, comm.why);
  const bool is_ending = comm.is_finalized && !comm.under_way.empty();
  return !comm.has_met || !comm.given.empty() || is_ending ? ncclInProgress : ncclSuccess;
}

void advance(ncclComm& comm) {
  if (!comm.has_met && comm.segment->is_complete()) {
    comm.has_met = true;
    look_for_twins(comm);
  }
  if (comm.failure == ncclSuccess) launch(comm);
}

void run_streams() {
  std::vector<cudaStream_t> streams;
  for (const auto& [handle, comm] : communicators()) {
    for (const auto& operation : comm->under_way) streams.push_back(operation->stream);
  }
  for (const cudaStream_t stream : streams) run_until(*stream, stream->given);
}

}  // namespace simulator
