/// \file
/// ProcessGroup: ranks that exchange tensors.
///
/// Every rank calls the same collectives in the same order. A call starts the operation and returns a Work; its
/// tensors must not be touched before `wait`. Tensors may be strided. If ranks disagree about an operation, or a rank
/// dies or does not arrive in time, all other ranks throw a CommError that names it. After an error the group stays
/// failed, and a new one can be made. Nothing here ends the process or prints.
///
/// Tensors may be on a GPU. shm, local, gloo, mpi and ucc copy them to the host and back: `wait` returns after the copy
/// back. The copies are counted as traffic between rank r and its GPU, which has the number -1 - r in the counters.
///
/// Tensors in a group's own communication memory (`empty`) are exchanged without copies; all ranks pass the same part
/// of it. A group may be used by one thread of its rank at a time. With several groups, start operations in the same
/// order on all ranks: a limited number may be in flight before the next start waits for the other ranks.
///
/// Every operation takes CallOptions as its last argument: `group->broadcast(t, 0, {.name = "first weight"})`.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "lockstep/base/callback.h"
#include "lockstep/parallel/comm/backend_options.h"
#include "lockstep/parallel/comm/traffic.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

class Backend;
class ScratchStore;
class Staging;
struct Call;

/// How a collective combines the ranks' values: sum, mean, minimum, maximum, product.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kMin, kMax, kProduct };

/// The order in which the ranks' values are added. kCanonical: pairs of neighbours, then pairs of pairs, with the same
/// bits on every backend. kNative: the backend's own order (shm and local use the canonical order). The other two are
/// for teaching: they make floating-point sums of three or more ranks differ in their last digits. kArrival adds in
/// the order in which the ranks started the operation: all ranks get the same result, but it differs between runs.
/// kOwnFirst: each rank adds all values itself, its own first, then the others by rank: results are the same in every
/// run, but differ between ranks.
enum class Reduction : std::uint8_t { kNative, kCanonical, kArrival, kOwnFirst };

/// A started operation. It may be dropped: the group keeps what the operation needs and finishes it.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the operation is complete on this rank. Throws CommError or CommTimeout, on each call.
  virtual void wait() = 0;
  virtual bool is_completed() = 0;  ///< true if `wait` would return immediately
  /// True if the operation is known to be complete; false if it is not, or if this cannot be told. Unlike
  /// is_completed, which may do part of the operation, this function changes nothing.
  virtual bool is_known_complete() { return false; }
  /// Not for users: throws the error of a completed operation, as `wait` does, but does not advance a simulated clock.
  virtual void check_completed() { wait(); }
};

/// Returns a Work that calls `finish` once, in the `wait` or `is_completed` that finds `work` complete.
std::shared_ptr<Work> then(std::shared_ptr<Work> work, Callback<void()> finish);

/// How to join a group (init_process_group).
struct InitOptions {
  std::string backend = "shm";  ///< shm, local, sim, gloo, mpi, ucc or nccl
  /// URL of the rendezvous: env://, tcp://host:port, file:///path, mpi://. Ignored if `store` is given.
  std::string init_method = "env://";
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< of every operation
  int world_size = -1;                                           ///< -1: from the environment
  int rank = -1;                                                 ///< this rank's number; -1: from the environment
  std::shared_ptr<Store> store = nullptr;                        ///< if set, rank and world_size are required
  std::string group_name = {};                                   ///< prefix of the group's keys in the store
  std::optional<Device> device = std::nullopt;                   ///< this rank's GPU, for nccl; else cuda:LOCAL_RANK
  Reduction reduction = Reduction::kNative;                      ///< the order of additions
  bool authenticate = true;                                      ///< with the job's token, if hosts are several
  BackendOptions backend_options = {};                           ///< NcclOptions or SimOptions, for that backend
};

/// Number of rows for each rank, if parts differ in size.
struct AllToAllOptions {
  std::vector<std::int64_t> out_splits = {};  ///< rows from each rank; empty: equal parts
  std::vector<std::int64_t> in_splits = {};   ///< rows to each rank
};

/// What one call of an operation is for. Errors and traces show the phase and the name.
struct CallOptions {
  /// Counts the call's traffic under this phase. Without it: kOther, or in a communication hook kGradients.
  std::optional<Phase> phase = std::nullopt;
  /// For example "unit blocks.1"; errors show its last 24 bytes. A name or an id that differs between the ranks of a
  /// collective is a CommError on all ranks (except on nccl). A send and its recv may have different names.
  std::string_view name = {};
  std::uint64_t id = 0;  ///< for example the number of a unit; compared as the name is
  /// Not for users: `out` gets the values that it had when autograd saved it, so that its version, which backward
  /// compares, does not change.
  bool same_values = false;
};

/// A group of ranks and its collectives, as described at the top of this file. Made by init_process_group.
class ProcessGroup {
 public:
  /// Not for users: call init_process_group.
  ProcessGroup(Rendezvous place, InitOptions options);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return place_.rank; }  ///< this rank's number, from 0
  int size() const { return place_.size; }  ///< number of ranks
  /// The number of `rank` in the group of init_process_group, from which this group comes by split and duplicate.
  int global_rank(int rank) const;
  const std::string& backend() const { return options_.backend; }         ///< "shm"
  std::chrono::milliseconds timeout() const { return options_.timeout; }  ///< of every operation

  /// Allocates a contiguous tensor in communication memory, uninitialised. All ranks pass the same shape and dtype.
  Tensor empty(const Shape& shape, DType dtype = kFloat32, Device device = {});

  /// Not for users: the tensors at the same place of all ranks' communication memory, by rank, for reading while no rank
  /// writes them. Empty if the ranks do not share memory.
  std::vector<Tensor> views_of_all(const Tensor& own) const;

  /// Copies the root's `tensor` to every rank's.
  std::shared_ptr<Work> broadcast(const Tensor& tensor, int root = 0, const CallOptions& options = {});
  /// Every rank's `tensor` becomes the sum (or `op`) over all ranks. kAvg needs a floating-point dtype; bool has no kSum
  /// and no kAvg, but kMax (true on any rank), kMin and kProduct (true on all ranks).
  std::shared_ptr<Work> all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {});
  /// The root's `tensor` becomes the sum over all ranks; the other ranks' tensors do not change.
  std::shared_ptr<Work> reduce(const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::kSum,
                               const CallOptions& options = {});
  /// `out`, of shape (size, ...) or with size times the rows, becomes the concatenation of all ranks' `in`, which may
  /// be part rank() of `out`.
  std::shared_ptr<Work> all_gather(const Tensor& out, const Tensor& in, const CallOptions& options = {});
  /// The root's outs[r] becomes rank r's `in`; `outs` is empty on the others.
  std::shared_ptr<Work> gather(const std::vector<Tensor>& outs, const Tensor& in, int root = 0,
                               const CallOptions& options = {});
  /// Every rank's `out` becomes the root's ins[rank]; `ins` is empty on the others.
  std::shared_ptr<Work> scatter(const Tensor& out, const std::vector<Tensor>& ins, int root = 0,
                                const CallOptions& options = {});
  /// Rank r's `out` becomes part r of the sum over all ranks' `in`, which has size times the elements. `out` may be
  /// part rank() of `in`, whose other parts do not change.
  std::shared_ptr<Work> reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::kSum,
                                       const CallOptions& options = {});
  /// Sends part r of the rows of `in` (equal parts without `in_splits`) to rank r, which gets it as part rank().
  std::shared_ptr<Work> all_to_all(const Tensor& out, const Tensor& in, const AllToAllOptions& splits = {},
                                   const CallOptions& options = {});
  /// Sends `tensor` to rank `to`, which calls recv with the same tag, shape and dtype.
  std::shared_ptr<Work> send(const Tensor& tensor, int to, int tag = 0, const CallOptions& options = {});
  std::shared_ptr<Work> recv(const Tensor& tensor, int from, int tag = 0,
                             const CallOptions& options = {});  ///< see send
  /// Returns when all ranks have called it. A timeout names the missing ranks.
  void barrier(const CallOptions& options = {});
  /// Says that an exception has ended this rank's step, so that no other rank waits for the rest of it. If every rank's
  /// step ends after the same collectives, the next step works. Otherwise the group fails on all ranks with a CommError
  /// that names this rank and `why`. Returns at once. The training modes call it. With the backend nccl it does nothing:
  /// the other ranks wait until their timeout.
  void step_failed(const std::string& why);
  /// Makes the group fail on all ranks with a CommError that names this rank and `why`. With the backend nccl it does
  /// nothing.
  void fail(const std::string& why);
  /// Whether an operation of this rank has failed, as all later ones then will. With the backend nccl always false.
  bool has_failed() const;
  /// The mean of all ranks' numbers, for metrics: `group->mean(loss)`. All ranks must call it; it waits for them.
  double mean(double value, const CallOptions& options = {});

  /// Splits the group: ranks with the same `color` form a new one, ordered by (key, rank). Null for a negative color.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0);

  /// Returns a duplicate group of the same ranks (MPI_Comm_dup), whose operations may be started in any order relative
  /// to this group's. Its traffic is recorded in this group's counters. All ranks must call this.
  std::shared_ptr<ProcessGroup> duplicate();
  /// Not for users: the object of type T that another module attaches to this group and its duplicates. The first call
  /// creates it. The attachments of a group that a split has made are its own.
  template <class T>
  T& attachment() {
    if (!attachment_of(typeid(T))) {
      auto object = std::make_shared<T>();  // whose constructor may ask for an attachment of another type
      attachment_of(typeid(T)) = std::move(object);
    }
    return *static_cast<T*>(attachment_of(typeid(T)).get());
  }

  /// Traffic counters of this rank, by link.
  TrafficStats& traffic() { return *traffic_; }

  /// Waits for the operations in flight and frees the staging memory of large operations. All ranks must call this.
  void release_staging();
  /// all_reduce with kSum, every sum multiplied by `scale` in the same pass.
  std::shared_ptr<Work> all_reduce_scaled(const Tensor& tensor, double scale, const CallOptions& options = {});
  /// reduce_scatter with kSum, every sum multiplied by `scale` in the same pass.
  std::shared_ptr<Work> reduce_scatter_scaled(const Tensor& out, const Tensor& in, double scale,
                                              const CallOptions& options = {});

 private:
  friend class PhaseGuard;
  friend std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options);
  std::shared_ptr<ScratchStore> make_backend(const std::shared_ptr<FormationWatch>& watch);
  std::shared_ptr<FormationWatch> watch_split(std::uint64_t number) const;
  std::uint64_t next_number(const Call& call);
  struct Launch;
  std::shared_ptr<Work> start(Call call, const Tensor& in, const Tensor& out, const CallOptions& options);
  Launch record(const Call& call);
  std::shared_ptr<Work> launch(Call call);
  std::shared_ptr<Work> start_staged(Call call, Device on);
  std::shared_ptr<Work> all_to_all_uneven(const Tensor& out, const Tensor& in, const AllToAllOptions& splits,
                                          const CallOptions& options);
  std::int64_t check_all_splits(const std::vector<std::int64_t>& in_splits, const std::vector<std::int64_t>& out_splits,
                                const CallOptions& options);
  std::shared_ptr<Work> keep(std::shared_ptr<Work> work);
  void check_rank(const char* op, const char* role, int rank) const;
  std::shared_ptr<void>& attachment_of(std::type_index type);

  std::unique_ptr<Staging> staging_;
  friend class ProgressGuard;         // progress_internal.h
  std::unique_ptr<Backend> backend_;  // null in a group of one
  Rendezvous place_;
  InitOptions options_;
  // Shared with the duplicates of this group:
  std::shared_ptr<TrafficStats> traffic_ = std::make_shared<TrafficStats>();
  using Attachments = std::vector<std::pair<std::type_index, std::shared_ptr<void>>>;
  std::shared_ptr<Attachments> attachments_ = std::make_shared<Attachments>();
  Phase phase_ = Phase::kOther;          // of calls whose options have none: see PhaseGuard
  std::uint64_t calls_ = 0;              // collectives so far: the next one's number
  std::uint32_t failed_steps_ = 0;       // see step_failed
  std::vector<std::uint64_t> messages_;  // messages so far by rank: sent, then received
  std::uint64_t splits_ = 0;
  std::shared_ptr<void> rank_state_;  // keeps the random state of a rank that is a thread; shared with parts
  int trace_group_ = 0;               // identifies this group's collectives in a trace; the same on all its ranks
  std::vector<std::shared_ptr<Work>> unfinished_;  // operations whose results are not copied to the user's tensors yet
};

/// Not for users: during its lifetime, calls of the group without CallOptions::phase are recorded under this phase. It is
/// for communication hooks of users, whose calls do not say to which phase they belong.
class PhaseGuard {
 public:
  PhaseGuard(ProcessGroup& group, Phase phase) : group_(group), before_(group.phase_) { group.phase_ = phase; }
  ~PhaseGuard() { group_.phase_ = before_; }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  ProcessGroup& group_;
  Phase before_;
};

/// Joins the ranks of a job. In a process that no launcher started (init_method is env://, and no launcher's variable
/// is set) the group has this process alone, with a warning. Throws InvalidArgument for options and environment
/// variables that contradict each other, CommError or CommTimeout if a rank is missing or was started twice, NotBuilt
/// for a backend this build lacks.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace lockstep::parallel
