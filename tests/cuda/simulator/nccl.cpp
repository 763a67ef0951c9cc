// NCCL: nonblocking communicators between threads and processes of this host. As with NCCL, a rank that does not
// arrive leaves the others waiting until they abort. Unlike NCCL, ranks that make different calls end the process.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "tests/cuda/simulator/nccl_communicator.h"
#include "tests/cuda/simulator/runtime_state.h"

namespace simulator {
namespace {

// A call: takes the mutex, counts the call, and fails if a test requested it.
template <class F>
ncclResult_t call(const char* function, F body) {
  const std::lock_guard lock(mutex());
  ++calls()[function];
  ncclResult_t status;
  try {
    status = static_cast<ncclResult_t>(take_failure(function));
    status = status == ncclSuccess ? body() : refuse(status, std::string(function) + " was told to fail");
  } catch (const std::exception& error) {
    status = refuse(ncclSystemError, error.what());
  }
  if (group().depth > 0 && group().status == ncclSuccess && status != ncclInProgress) group().status = status;
  return status;
}

template <class F>
ncclResult_t call_on(const char* function, ncclComm_t handle, F body) {
  return call(function, [&] {
    const std::shared_ptr<ncclComm> comm = find(handle);
    return comm ? body(comm) : refuse(ncclInvalidArgument, "the communicator is NULL");
  });
}

// A call that needs the communicator to be ready.
template <class F>
ncclResult_t call_on_ready(const char* function, ncclComm_t handle, F body) {
  return call_on(function, handle, [&](const std::shared_ptr<ncclComm>& comm) {
    const ncclResult_t state = state_of(*comm);
    if (state == ncclInProgress)
      return refuse(ncclInvalidArgument,
                    "Attempt to use communicator before the previous operation returned ncclSuccess");
    return state == ncclSuccess ? body(comm) : state;
  });
}

// An operation, whose parts `fill` makes from the bytes of `count` elements.
template <class F>
ncclResult_t start(const char* function, const Header& header, ncclComm_t handle, cudaStream_t stream, F fill) {
  return call_on_ready(function, handle, [&](const std::shared_ptr<ncclComm>& comm) {
    if (comm->is_finalized) return refuse(ncclInvalidUsage, "the communicator was finalized");
    if (!stream || bytes_of(header.type) == 0 || header.root < 0 || header.root >= comm->size)
      return refuse(ncclInvalidArgument, "no stream, a type that is not simulated, or no such rank");
    if (is_captured(stream)) return refuse(ncclInvalidUsage, "captures are not simulated");
    if (header.count == 0) return ncclSuccess;
    const auto operation = std::make_shared<Operation>(comm, stream, header);
    const ncclResult_t status = fill(*operation, header.count * bytes_of(header.type));
    return status == ncclSuccess ? submit(operation) : status;
  });
}

unsigned char* place(const void* start, std::size_t bytes, int index) {
  return static_cast<unsigned char*>(const_cast<void*>(start)) + bytes * static_cast<std::size_t>(index);
}

// Every rank's part is sent to the ranks that want the result, and these reduce the parts in rank order.
ncclResult_t fill_reduction(Operation& operation, std::size_t bytes, const void* in, void* out) {
  Header& header = operation.header;
  Reduction reduction = {.type = header.type, .op = header.op};
  if (header.op >= ncclNumOps) {
    const auto found = operation.comm->operators.find(header.op);
    if (found == operation.comm->operators.end() || found->second.type != header.type)
      return refuse(ncclInvalidArgument, "no such operator, or one of another type");
    reduction = found->second;
    header.op = ncclNumOps;
  }
  const int size = operation.comm->size;
  const bool scatters = header.kind == Kind::kReduceScatter, has_root = header.kind == Kind::kReduce;
  operation.buffers.push_back({in, scatters ? bytes * static_cast<std::size_t>(size) : bytes});
  for (int rank = 0; rank < size; ++rank) {
    if (!has_root || rank == header.root) operation.send(place(in, bytes, scatters ? rank : 0), bytes, rank);
  }
  if (has_root && operation.comm->rank != header.root) return ncclSuccess;
  operation.buffers.push_back({out, bytes});
  operation.staging.resize(bytes * static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) operation.receive(place(operation.staging.data(), bytes, rank), bytes, rank);
  operation.finish = [&operation, reduction, size, out] { reduce(reduction, operation.staging, size, out); };
  return ncclSuccess;
}

ncclResult_t start_reduction(const char* function, const Header& header, const void* in, void* out, ncclComm_t comm,
                             cudaStream_t stream) {
  return start(function, header, comm, stream,
               [&](Operation& operation, std::size_t bytes) { return fill_reduction(operation, bytes, in, out); });
}

// A send or a receive.
template <class F>
ncclResult_t start_message(const char* function, const void* data, std::size_t count, ncclDataType_t type, int peer,
                           ncclComm_t comm, cudaStream_t stream, F add) {
  const Header header = {Kind::kMessage, type, ncclSum, peer, count};
  return start(function, header, comm, stream, [&](Operation& operation, std::size_t bytes) {
    operation.header.root = 0;  // the root means the peer, which differs on the two ranks
    operation.buffers.push_back({data, bytes});
    add(operation, bytes);
    return ncclSuccess;
  });
}

}  // namespace
}  // namespace simulator

using simulator::call;
using simulator::call_on;
using simulator::call_on_ready;
using simulator::Header;
using simulator::Kind;
using simulator::Operation;
using simulator::refuse;

// --- operations -----------------------------------------------------------------------------------------------------

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return simulator::start_reduction(__func__, {Kind::kAllReduce, type, op, 0, count}, in, out, comm, stream);
}

ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return simulator::start_reduction(__func__, {Kind::kReduce, type, op, root, count}, in, out, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return simulator::start_reduction(__func__, {Kind::kReduceScatter, type, op, 0, count}, in, out, comm, stream);
}

ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  const Header header = {Kind::kBroadcast, type, ncclSum, root, count};
  return simulator::start(__func__, header, comm, stream, [&](Operation& operation, std::size_t bytes) {
    const bool is_root = operation.comm->rank == root;
    if (is_root) operation.buffers.push_back({in, bytes});
    for (int rank = 0; is_root && rank < operation.comm->size; ++rank) operation.send(in, bytes, rank);
    operation.buffers.push_back({out, bytes});
    operation.receive(out, bytes, root);
    return ncclSuccess;
  });
}

ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const Header header = {Kind::kAllGather, type, ncclSum, 0, count};
  return simulator::start(__func__, header, comm, stream, [&](Operation& operation, std::size_t bytes) {
    const int size = operation.comm->size;
    operation.buffers = {{in, bytes}, {out, bytes * static_cast<std::size_t>(size)}};
    for (int rank = 0; rank < size; ++rank) {
      operation.send(in, bytes, rank);
      operation.receive(simulator::place(out, bytes, rank), bytes, rank);
    }
    return ncclSuccess;
  });
}

ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return simulator::start_message(__func__, in, count, type, peer, comm, stream,
                                  [&](Operation& operation, std::size_t bytes) { operation.send(in, bytes, peer); });
}

ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return simulator::start_message(
      __func__, out, count, type, peer, comm, stream,
      [&](Operation& operation, std::size_t bytes) { operation.receive(out, bytes, peer); });
}

ncclResult_t ncclGroupStart() {
  return call(__func__, [] {
    ++simulator::group().depth;
    return ncclSuccess;
  });
}

// Ends the group even if the call is to fail.
ncclResult_t ncclGroupEnd() {
  simulator::Group ended;
  const bool was_open = simulator::group().depth > 0;
  if (was_open && --simulator::group().depth == 0) std::swap(ended, simulator::group());
  return call(__func__, [&] {
    if (!was_open) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    return ended.status == ncclSuccess ? simulator::give(ended.operations) : ended.status;
  });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t handle) {
  return call_on_ready(__func__, handle, [&](const std::shared_ptr<ncclComm>& comm) {
    if (residence != ncclScalarHostImmediate || simulator::bytes_of(type) == 0)
      return refuse(ncclInvalidArgument, "a factor on the device, or of a type that is not simulated");
    simulator::Reduction reduction = {.type = type, .op = ncclSum, .has_factor = true};
    std::memcpy(reduction.factor.data(), scalar, simulator::bytes_of(type));
    *op = static_cast<ncclRedOp_t>(comm->next_operator++);
    comm->operators[*op] = reduction;
    return ncclSuccess;
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  return call_on(__func__, handle, [&](const std::shared_ptr<ncclComm>& comm) {
    return comm->operators.erase(op) == 1 ? ncclSuccess : refuse(ncclInvalidArgument, "no such operator");
  });
}

// --- communicators --------------------------------------------------------------------------------------------------

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return call(__func__, [&] {
    return getentropy(id->internal, sizeof(id->internal)) == 0 ? ncclSuccess : refuse(ncclSystemError, "getentropy");
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *handle = nullptr;
  return call(__func__, [&] {
    const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
    if (size < 1 || rank < 0 || rank >= size || !config || config->magic != initial.magic)
      return refuse(ncclInvalidArgument, "no such rank, or a config that was not initialized");
    if (config->blocking != 0) simulator::give_up("nccl: communicators that block are not simulated");
    const int device = simulator::current_device();
    cudaDeviceProp properties;
    if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess)
      return refuse(ncclUnhandledCudaError, cudaGetErrorString(status));
    const std::size_t meeting = std::hash<std::string_view>()({id.internal, sizeof(id.internal)});
    auto segment = std::make_unique<simulator::Segment>("/lockstep-nccl-" + std::to_string(meeting), rank, size,
                                                        simulator::gpu_of(properties));
    const auto comm = std::make_shared<ncclComm>(rank, size, device, std::move(segment));
    simulator::communicators()[comm.get()] = comm;
    *handle = comm.get();
    return ncclInProgress;
  });
}

// A caller that asks again is waiting, so this call lets the GPUs run.
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* status) {
  return call_on(__func__, handle, [&](const std::shared_ptr<ncclComm>& comm) {
    if (comm->is_finalized || comm->is_asked_again) simulator::run_streams();
    comm->is_asked_again = true;
    simulator::advance(*comm);
    *status = simulator::state_of(*comm);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return call_on_ready(__func__, handle, [](const std::shared_ptr<ncclComm>& comm) {
    if (std::exchange(comm->is_finalized, true)) return refuse(ncclInvalidArgument, "finalized twice");
    return simulator::state_of(*comm);
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return call_on_ready(__func__, handle, [](const std::shared_ptr<ncclComm>& comm) {
    const simulator::OnDevice device(comm->device);
    while (!comm->under_way.empty()) {
      simulator::run_streams();
      simulator::mutex().unlock();  // held once by the call
      std::this_thread::yield();
      simulator::mutex().lock();
    }
    simulator::communicators().erase(comm.get());
    return ncclSuccess;
  });
}

// Operations in flight end when their streams run again.
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return call(__func__, [&] {
    const std::shared_ptr<ncclComm> comm = simulator::find(handle);
    if (!comm) return ncclSuccess;
    const simulator::OnDevice device(comm->device);
    comm->is_aborted = true;
    comm->given.clear();
    comm->under_way.clear();
    simulator::communicators().erase(handle);
    return ncclSuccess;
  });
}

const char* ncclGetLastError(ncclComm_t) {
  const std::lock_guard lock(simulator::mutex());
  ++simulator::calls()[__func__];
  return simulator::last_error().c_str();
}

const char* ncclGetErrorString(ncclResult_t status) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                    "internal error - please report this issue to the NCCL developers",
                                    "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                    "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  const std::lock_guard lock(simulator::mutex());
  ++simulator::calls()[__func__];
  return status >= 0 && status < ncclNumResults ? kTexts[status] : "unknown result code";
}

// --- memory ---------------------------------------------------------------------------------------------------------

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  return call(__func__, [&] {
    int device = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = simulator::device_state(device).broken;
    if (status != cudaSuccess) return refuse(ncclUnhandledCudaError, cudaGetErrorString(status));
    *data = simulator::allocate_on(device, bytes);
    return *data ? ncclSuccess : refuse(ncclUnhandledCudaError, cudaGetErrorString(cudaErrorMemoryAllocation));
  });
}

ncclResult_t ncclMemFree(void* data) {
  return call(__func__, [&] {
    if (data) simulator::free_on_device(data);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void* data, std::size_t bytes, void** registration) {
  return call_on(__func__, handle, [&](const std::shared_ptr<ncclComm>& comm) {
    comm->is_asked_again = false;
    if (!simulator::is_device_memory(data, bytes)) return refuse(ncclInvalidArgument, "no memory of a device");
    const auto [place, is_new] = comm->registered.emplace(data, bytes);
    if (!is_new) return refuse(ncclInvalidArgument, "registered twice");
    *registration = &place->second;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* registration) {
  return call_on(__func__, handle, [&](const std::shared_ptr<ncclComm>& comm) {
    comm->is_asked_again = false;
    const auto is_it = [&](const auto& known) { return &known.second == registration; };
    return std::erase_if(comm->registered, is_it) == 1 ? ncclSuccess : refuse(ncclInvalidArgument, "not registered");
  });
}
