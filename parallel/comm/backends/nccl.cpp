// nccl: each rank has a GPU. NCCL's kernels run on a separate stream, after the kernels launched before on the compute
// stream. `wait` returns when they are done, so kernels launched afterwards on any stream run later.
//
// NCCL cannot detect that ranks disagree about an operation: the ranks wait for each other until the group's timeout,
// whose error shows the progress of each rank. NCCL's order of additions is its own, so canonical sums are refused.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <thread>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/environment_internal.h"
#include "lockstep/base/file_internal.h"
#include "lockstep/base/spin_internal.h"
#include "lockstep/parallel/comm/backends/nccl_communicator_internal.h"
#include "lockstep/parallel/comm/gpu_identity_internal.h"
#include "lockstep/parallel/comm/group_failure_internal.h"
#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/modules_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"
#include "lockstep/tensor/memory/capture_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel::nccl {
namespace {

constexpr int kSpins = 5000;
constexpr std::chrono::microseconds kBetweenLooks{50};
constexpr std::uint64_t kLooksBetweenQuestions = 64;  // for asynchronous errors of NCCL, which takes a lock
constexpr int kSharedGpuPatience = 10;                // factor of the timeout for ranks that share a GPU

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }  // pending waits for the event still complete
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclGroup;

class NcclWork final : public GroupWork<NcclGroup, NcclWork> {
 public:
  NcclWork(NcclGroup* group, Call call) : GroupWork(group), call(std::move(call)) {}

  Call call;  // keeps the tensors until the operation is over
  Event done;
};

// --- NCCL's types and operators -------------------------------------------------------------------------------------

ncclDataType_t type_of(const Call& call) {
  constexpr ncclDataType_t kTypes[kDTypeCount] = {ncclUint8,   ncclUint8,    ncclInt32,   ncclInt64,
                                                  ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64};
  return kTypes[static_cast<std::size_t>(call.dtype)];
}

// The operator of a reduction. An operator with a factor is created here and destroyed by the destructor.
class Operator {
 public:
  Operator(const Call& call, ncclComm_t comm) : comm_(comm) {
    if (call.op == ReduceOp::kAvg) {
      op_ = ncclAvg;
    } else if (call.scale != 1) {
      const Tensor factor = raw::full({}, call.scale, {.dtype = call.dtype});
      status_ = ncclRedOpCreatePreMulSum(&op_, factor.raw_data(), type_of(call), ncclScalarHostImmediate, comm);
      made_ = status_ == ncclSuccess;
    } else {
      constexpr ncclRedOp_t kOps[] = {ncclSum, ncclAvg, ncclMin, ncclMax, ncclProd};
      op_ = kOps[static_cast<std::size_t>(call.op)];
    }
  }
  ~Operator() {
    if (made_) static_cast<void>(ncclRedOpDestroy(op_, comm_));  // started operations still complete
  }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;
  ncclResult_t status() const { return status_; }
  ncclRedOp_t get() const { return op_; }

 private:
  ncclComm_t comm_;
  ncclRedOp_t op_ = ncclSum;
  ncclResult_t status_ = ncclSuccess;
  bool made_ = false;
};

std::byte* bytes_at(const Tensor& t, std::size_t offset) { return static_cast<std::byte*>(t.raw_data()) + offset; }

// Sends a part to each rank that receives, and receives one from each that sends, in one NCCL group. Returns the first
// status that is not success.
ncclResult_t exchange(const Call& call, ncclComm_t comm, cudaStream_t stream, int rank, int size) {
  const auto bytes_of = [&](const std::vector<std::int64_t>& uneven, int r) {
    return uneven.empty() ? call.bytes()
                          : static_cast<std::size_t>(uneven[static_cast<std::size_t>(r)]) * item_size(call.dtype);
  };
  ncclResult_t status = ncclGroupStart();
  const auto is_fine = [&] { return status == ncclSuccess || status == ncclInProgress; };
  std::size_t from = 0, to = 0;
  for (int r = 0; r < size; ++r) {
    const std::size_t sent = bytes_of(call.in_parts, r), received = bytes_of(call.out_parts, r);
    if (is_fine() && sent > 0 && call.sends(rank) && call.receives(r))
      status = ncclSend(bytes_at(call.in, from), sent, ncclUint8, r, comm, stream);
    if (is_fine() && received > 0 && call.sends(r) && call.receives(rank))
      status = ncclRecv(bytes_at(call.out, to), received, ncclUint8, r, comm, stream);
    if (call.flow().in_parts) from += sent;
    if (call.flow().out_parts) to += received;
  }
  const ncclResult_t ended = ncclGroupEnd();
  return is_fine() ? ended : status;
}

// Starts the call's kernel. `one` is a byte on the device, for barriers.
ncclResult_t launch(const Call& call, ncclComm_t comm, cudaStream_t stream, int rank, int size, void* one) {
  const auto count = static_cast<std::size_t>(call.count);
  const std::size_t bytes = call.bytes();
  const auto in = [&] { return call.in.raw_data(); };
  const auto out = [&] { return call.out.raw_data(); };
  switch (call.kind) {
    case Kind::kBarrier:
      return ncclAllReduce(one, one, 1, ncclUint8, ncclSum, comm, stream);
    case Kind::kBroadcast:
      return ncclBroadcast(in(), out(), bytes, ncclUint8, call.root, comm, stream);
    case Kind::kAllGather:
      return ncclAllGather(in(), out(), bytes, ncclUint8, comm, stream);
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kReduceScatter: {
      const Operator op(call, comm);
      if (op.status() != ncclSuccess) return op.status();
      if (call.kind == Kind::kAllReduce)
        return ncclAllReduce(in(), out(), count, type_of(call), op.get(), comm, stream);
      if (call.kind == Kind::kReduceScatter)
        return ncclReduceScatter(in(), out(), count, type_of(call), op.get(), comm, stream);
      return ncclReduce(in(), rank == call.root ? out() : nullptr, count, type_of(call), op.get(), call.root, comm,
                        stream);
    }
    default:
      return exchange(call, comm, stream, rank, size);
  }
}

// --- the group ------------------------------------------------------------------------------------------------------

class NcclGroup final : public Backend {
 public:
  NcclGroup(const Rendezvous& place, Device device, std::chrono::milliseconds timeout)
      : Backend(place), timeout_(timeout), communicator_(std::make_shared<Communicator>(place, device, timeout)),
        one_(Storage::allocate(1, device)) {}
  ~NcclGroup() override;

  Device device_for(Device) const override { return communicator_->device(); }
  bool takes_uneven_parts() const override { return true; }
  Ref<Storage> allocate(const Call&, std::size_t bytes, Device) override {
    return Communicator::allocate(communicator_, bytes);
  }
  std::shared_ptr<Work> start(Call call) override;

  void wait(NcclWork& work);
  bool poll(NcclWork& work);

 private:
  void fail(NcclWork& work, const std::string& why, bool late);
  bool look(NcclWork& work);

  std::chrono::milliseconds timeout_;
  std::shared_ptr<Communicator> communicator_;
  Ref<Storage> one_;
  Event computed_;
  std::deque<std::shared_ptr<NcclWork>> in_flight_;
  std::uint64_t looks_ = 0;
};

NcclGroup::~NcclGroup() {
  const std::deque<std::shared_ptr<NcclWork>> left = std::exchange(in_flight_, {});
  for (const auto& work : left) {
    try {
      if (work->group && std::uncaught_exceptions() == 0) wait(*work);
    } catch (const Error&) {
      // The operation keeps the error; the user did not wait for it.
    }
    if (!work->group) continue;
    communicator_->abort();  // peers may never arrive
    work->fail_without_group(work->call);
  }
}

std::shared_ptr<Work> NcclGroup::start(Call call) {
  capture::forbid(call.describe().c_str(), communicator_->device());
  while (!in_flight_.empty() && (!in_flight_.front()->group || poll(*in_flight_.front()))) in_flight_.pop_front();
  if (communicator_->watch().has_failed()) GroupFailure(communicator_->watch().failure()).check_usable(call);
  if (!call.is_message()) communicator_->watch().set_collectives(call.number + 1);  // numbers of messages differ
  const cudaStream_t compute = compute_stream(communicator_->device()), own = communicator_->stream();
  const auto work = std::make_shared<NcclWork>(this, std::move(call));
  check(cudaEventRecord(computed_.get(), compute), "cudaEventRecord");
  check(cudaStreamWaitEvent(own, computed_.get(), 0), "cudaStreamWaitEvent");
  try {
    if (work->call.kind == Kind::kBarrier || work->call.count > 0)
      communicator_->run(parallel::name(work->call.kind),
                         [&](ncclComm_t comm) { return launch(work->call, comm, own, rank_, size_, one_->data()); });
    check(cudaEventRecord(work->done.get(), own), "cudaEventRecord");
  } catch (Error& error) {
    const std::string own = fmt::format("{}: {}", text_of(rank_), error.what());
    if (const std::string failure = communicator_->watch().fail_of_transport(own); failure != own)
      GroupFailure(failure).with_context(work->call).raise();
    error.add_context(work->call.describe());
    throw;
  }
  in_flight_.push_back(work);
  return work;
}

// Returns whether the operation has completed or failed.
bool NcclGroup::look(NcclWork& work) {
  const cudaError_t status = cudaEventQuery(work.done.get());
  const bool failed = communicator_->watch().has_failed();  // an aborted kernel also ends, without success
  if (status == cudaSuccess && !failed) {
    work.group = nullptr;
    return true;
  }
  if (failed) {
    fail(work, communicator_->watch().failure(), false);
  } else if (status != cudaErrorNotReady) {
    fail(work, fmt::format("{}: {}", text_of(rank_), cudaGetErrorString(status)), false);
  } else if (++looks_ % kLooksBetweenQuestions == 0) {
    if (const std::string error = communicator_->async_error(); !error.empty())
      fail(work, communicator_->watch().fail_of_transport(fmt::format("{}: {}", text_of(rank_), error)), false);
  }
  return !work.group;
}

void NcclGroup::fail(NcclWork& work, const std::string& why, bool late) {
  static_cast<void>(cudaGetLastError());
  communicator_->watch().fail(why);
  work.fail(GroupFailure(communicator_->watch().failure(), late).with_context(work.call));
}

bool NcclGroup::poll(NcclWork& work) {
  compute_stream(communicator_->device());
  return look(work);
}

void NcclGroup::wait(NcclWork& work) {
  compute_stream(communicator_->device());
  Deadline deadline(timeout_);
  Spin spin(kSpins, /*yields=*/true);
  while (!look(work)) {
    if (spin.next()) continue;
    if (communicator_->watch().is_orphaned())
      return fail(work, "rank 0 is gone: its process has ended, and the store with it", false);
    if (deadline.passed())
      return fail(work,
                  fmt::format("not complete after {} ms on {}: {}", timeout_.count(), text_of(rank_),
                              communicator_->watch().progress()),
                  true);
    std::this_thread::sleep_for(kBetweenLooks);  // CUDA has no wait with a timeout
  }
}

// --- construction ---------------------------------------------------------------------------------------------------

Device device_for(const InitOptions& options, const Rendezvous& place) {
  if (options.device) {
    LOCKSTEP_CHECK(options.device->is_cuda(),
                   "init_process_group: nccl works on GPUs, and .device is {}; use gloo or shm",
                   options.device->to_string());
    return *options.device;
  }
  const int count = std::max(device_count(DeviceType::kCuda), 1);
  return {DeviceType::kCuda, environment_number("LOCAL_RANK", 0, kMaxRanks - 1).value_or(place.rank) % count};
}

GpuIdentity identity_of(Device device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device.index()), "cudaGetDeviceProperties");
  std::string uuid = "GPU-";
  for (const char byte : properties.uuid.bytes) uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return {boot_id(), uuid, device.to_string()};
}

// NCCL refuses two ranks on one GPU of one host, so each process reports a host name of its own.
void pretend_to_be_a_host() {
  if (setenv("NCCL_HOSTID", fmt::format("lockstep-{}", getpid()).c_str(), 0) != 0)
    throw CommError("init_process_group: nccl: NCCL_HOSTID cannot be set");
}

std::unique_ptr<Backend> make_nccl(const InitOptions& options, const Rendezvous& place) {
  LOCKSTEP_CHECK(place.store, "init_process_group: the backend nccl needs a store; use env://");
  LOCKSTEP_CHECK(options.reduction == Reduction::kNative,
                 "init_process_group: nccl does not add in canonical order; use Reduction::kNative or another backend");
  const Device device = device_for(options, place);
  compute_stream(device);  // throws if the GPU does not exist, before identities are exchanged
  const std::vector<GpuIdentity> all = exchange_gpus(*place.store, place.rank, place.size, identity_of(device));
  const bool shares = check_shared_gpu(all, options.backend_options.get<NcclOptions>().allow_shared_gpu);
  if (shares) pretend_to_be_a_host();
  return std::make_unique<NcclGroup>(place, device, options.timeout * (shares ? kSharedGpuPatience : 1));
}

constexpr BackendModule kModule{.version = LOCKSTEP_VERSION, .make = make_nccl, .keeps_store = true};

}  // namespace
}  // namespace lockstep::parallel::nccl

extern "C" const lockstep::parallel::BackendModule* lockstep_backend_nccl();
const lockstep::parallel::BackendModule* lockstep_backend_nccl() { return &lockstep::parallel::nccl::kModule; }
