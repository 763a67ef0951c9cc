/// \file
/// ProcessGroup: ranks that exchange tensors.
///
/// Every rank calls the same collectives in the same order. A call starts the operation and returns a Work; its tensors
/// must not be touched before `wait`. Tensors may be strided. Ranks that disagree about an operation, a rank that dies and
/// one that does not arrive in time are a CommError on all the others, which names it; after an error the group stays
/// failed, and a new one can be made. Nothing here ends the process or prints.
///
/// Tensors may be on a GPU. shm, local, gloo and mpi copy them to the host and back: `wait` returns when they are back, and
/// the copies are counted as traffic between rank r and its GPU, which has the number -1 - r there.
///
/// What lives in a group's own communication memory (`empty`) is exchanged without copies. A group belongs to one thread of
/// its rank at a time. With several groups, start operations in the same order on all ranks: a few may be in flight
/// before starting one more waits for the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/backend_options.h"
#include "lockstep/parallel/comm/traffic.h"
#include "lockstep/parallel/rendezvous/rendezvous.h"
#include "lockstep/parallel/rendezvous/store.h"
#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

class Backend;
class ScratchStore;
class Staging;
struct Call;

/// What a collective makes of the ranks' values: sum, mean, smallest, largest, product.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kMin, kMax, kProduct };

/// In which order the ranks' values are added. kCanonical: pairs of neighbours, then pairs of pairs, on every backend the
/// same bits; kNative: as the backend likes (for shm and local that is the canonical order, too). Two are for teaching, and
/// make the floating-point sums of three or more ranks differ in their last digits, which the canonical order prevents.
/// kArrival: values are added in the order in which the ranks started the operation; all ranks get the same result, but runs
/// differ from one another. kOwnFirst: each rank adds for itself, its own value first, then the others' by rank; runs are
/// alike, but the ranks' results differ.
enum class Reduction : std::uint8_t { kNative, kCanonical, kArrival, kOwnFirst };

/// An operation that was started. Dropping it is safe: the group keeps what it needs and finishes it.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the operation is complete on this rank. Throws CommError or CommTimeout, each time it is called.
  virtual void wait() = 0;
  virtual bool is_completed() = 0;  ///< whether `wait` would return at once
  /// Whether the operation is known to be complete. Unlike is_completed, which may do a part of its work,
  /// this function only looks; it returns false where that does not tell.
  virtual bool is_known_complete() { return false; }
};

/// `work`, and then `finish`, which runs once, in the `wait` or `is_completed` that finds `work` complete.
std::shared_ptr<Work> then(std::shared_ptr<Work> work, Callback<void()> finish);

/// How to join a group (init_process_group).
struct InitOptions {
  std::string backend = "shm";  ///< shm, local, sim, gloo, mpi or nccl
  /// How the ranks find each other: env://, tcp://host:port, file:///path, mpi://. Ignored where `store` is given.
  std::string init_method = "env://";
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  ///< of every operation
  int world_size = -1;                                           ///< -1: from the environment
  int rank = -1;                                                 ///< this rank's number; -1: from the environment
  std::shared_ptr<Store> store = nullptr;                        ///< with it, rank and world_size must be given
  std::string group_name = {};                                   ///< keeps the groups of one store apart
  std::optional<Device> device = std::nullopt;                   ///< this rank's GPU, for nccl; else cuda:LOCAL_RANK
  Reduction reduction = Reduction::kNative;                      ///< the order of additions
  bool authenticate = true;                                      ///< stores of several hosts: with the job's token
  BackendOptions backend_options = {};                           ///< of this backend alone: NcclOptions, SimOptions
};

/// How many rows ranks exchange, where they differ.
struct AllToAllOptions {
  std::vector<std::int64_t> out_splits = {};  ///< rows from each rank; empty: equal parts
  std::vector<std::int64_t> in_splits = {};   ///< rows to each rank
};

/// Base of what other modules keep with a group.
struct GroupAttachment {
  virtual ~GroupAttachment() = default;
};

/// The ranks of a job and what they can do together, as the head of this file says. Made by init_process_group.
class ProcessGroup {
 public:
  /// Not for users: init_process_group makes groups.
  ProcessGroup(Rendezvous place, InitOptions options);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return place_.rank; }                                ///< this rank's number, from 0
  int size() const { return place_.size; }                                ///< number of ranks
  const std::string& backend() const { return options_.backend; }         ///< "shm"
  std::chrono::milliseconds timeout() const { return options_.timeout; }  ///< of every operation

  /// Uninitialised communication memory, contiguous; the same call on all ranks, but for the device.
  Tensor empty(const Shape& shape, DType dtype = kFloat32, Device device = {});

  /// Every rank's `tensor` becomes the root's.
  std::shared_ptr<Work> broadcast(const Tensor& tensor, int root);
  /// Every rank's `tensor` becomes the sum (...) over all ranks. kAvg needs a floating-point dtype.
  std::shared_ptr<Work> all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum);
  /// The root's `tensor` becomes the sum over all ranks; the others' stay as they are.
  std::shared_ptr<Work> reduce(const Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);
  /// `out`, of shape (size, ...) or with size times the rows, becomes the ranks' `in` one after another.
  std::shared_ptr<Work> all_gather(const Tensor& out, const Tensor& in);
  /// The root's outs[r] becomes rank r's `in`; `outs` is empty on the others.
  std::shared_ptr<Work> gather(const std::vector<Tensor>& outs, const Tensor& in, int root);
  /// Every rank's `out` becomes the root's ins[rank]; `ins` is empty on the others.
  std::shared_ptr<Work> scatter(const Tensor& out, const std::vector<Tensor>& ins, int root);
  /// Rank r's `out` becomes part r of the sum over all ranks' `in`, which has size times the elements.
  std::shared_ptr<Work> reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::kSum);
  /// Part r of `in` (rows; by `in_splits`, else equal parts) goes to rank r, which has it as its part `rank` of `out`.
  std::shared_ptr<Work> all_to_all(const Tensor& out, const Tensor& in, const AllToAllOptions& options = {});
  /// From one rank to another; both name the same tag, shape and dtype.
  std::shared_ptr<Work> send(const Tensor& tensor, int to, int tag = 0);
  std::shared_ptr<Work> recv(const Tensor& tensor, int from, int tag = 0);  ///< see send
  /// Returns when all ranks have come here. A timeout names the ranks that are missing.
  void barrier();

  /// Cuts the group: ranks with the same `color` form a new one, ordered by (key, rank). A negative color: no group, null.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0);

  /// A duplicate: a group of the same ranks, for operations that may be started in another order than this one's on each
  /// rank (MPI_Comm_dup). Its traffic is counted here. On all ranks.
  std::shared_ptr<ProcessGroup> duplicate();
  /// Not for users: what a module above keeps with a group and its duplicates; null at first.
  std::shared_ptr<GroupAttachment>& attachment() { return *attachment_; }

  /// What this rank has sent, by link.
  TrafficStats& traffic() { return *traffic_; }

  /// After large operations that will not come again: waits for those in flight and gives memory back. On all ranks.
  void release_staging();
  /// all_reduce with kSum, every sum multiplied by `scale` in the same pass.
  std::shared_ptr<Work> all_reduce_scaled(const Tensor& tensor, double scale);

 private:
  friend class PhaseGuard;
  std::shared_ptr<ScratchStore> make_backend(const std::shared_ptr<FormationWatch>& watch);
  void meet(ScratchStore* scratch);
  std::shared_ptr<FormationWatch> watch_split(std::uint64_t number) const;
  std::uint64_t next_number(const Call& call);
  struct Launch;
  std::shared_ptr<Work> start(Call call, const Tensor& in, const Tensor& out);
  Launch record(const Call& call);
  std::shared_ptr<Work> launch(Call call);
  std::shared_ptr<Work> start_staged(Call call, Device on);
  std::shared_ptr<Work> all_to_all_uneven(const Tensor& out, const Tensor& in, const AllToAllOptions& options);
  std::int64_t check_all_splits(const std::vector<std::int64_t>& in_splits,
                                const std::vector<std::int64_t>& out_splits);
  std::shared_ptr<Work> keep(std::shared_ptr<Work> work);
  void check_rank(const char* op, const char* role, int rank) const;

  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Backend> backend_;  // null in a group of one
  Rendezvous place_;
  InitOptions options_;
  // Of this group and its duplicates:
  std::shared_ptr<TrafficStats> traffic_ = std::make_shared<TrafficStats>();
  std::shared_ptr<std::shared_ptr<GroupAttachment>> attachment_ = std::make_shared<std::shared_ptr<GroupAttachment>>();
  Phase phase_ = Phase::kOther;
  std::uint64_t calls_ = 0;              // collectives so far: the next one's number
  std::vector<std::uint64_t> messages_;  // so far, by the other rank: sent ones, then received ones
  std::uint64_t splits_ = 0;
  int trace_group_ = 0;  // tells this group's collectives from others' in a trace; the same on all its ranks
  std::vector<std::shared_ptr<Work>> unfinished_;  // results that have yet to be put where users see them
};

/// While it lives, a group's operations are booked under a phase.
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

/// Joins the ranks of a job. Throws InvalidArgument for options and environment variables that do not fit together,
/// CommError or CommTimeout where ranks are missing or there twice, NotBuilt for a backend this build lacks.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace lockstep::parallel
