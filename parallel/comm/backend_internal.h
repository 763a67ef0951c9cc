// The interface of a backend, which starts checked, contiguous operations. ProcessGroup does the rest once for all
// backends: checks, strided tensors, numbering, error texts, traffic counters.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/ops/combine_internal.h"

namespace lockstep::parallel {

enum class Kind : std::uint8_t {
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kEmpty,  // the allocation of communication memory, which all ranks do together
  kSend,
  kRecv,
};
const char* name(Kind kind);    // "all_reduce"
const char* name(ReduceOp op);  // "sum"
// Describes an order for teaching, for example "in order of arrival". Returns "" for any other value.
const char* order_text(Reduction order);
raw::CombineOp combine_op(ReduceOp op);

// How an operation moves data. For send and recv the root is the other rank.
struct Flow {
  bool from_root = false, to_root = false;   // the root alone sends, or receives; otherwise all ranks do
  bool in_parts = false, out_parts = false;  // `in` has a part for each rank that receives, `out` one of each sender
  bool reduces = false;                      // the ranks' parts are combined
  bool has_parts() const { return in_parts || out_parts; }
};
inline constexpr Flow kFlows[] = {
    {.from_root = true},                    // broadcast
    {.reduces = true},                      // all_reduce
    {.to_root = true, .reduces = true},     // reduce
    {.out_parts = true},                    // all_gather
    {.to_root = true, .out_parts = true},   // gather
    {.from_root = true, .in_parts = true},  // scatter
    {.in_parts = true, .reduces = true},    // reduce_scatter
    {.in_parts = true, .out_parts = true},  // all_to_all
    {},                                     // barrier
    {},                                     // empty
    {.to_root = true},                      // send
    {.from_root = true},                    // recv
};
static_assert(std::size(kFlows) == static_cast<std::size_t>(Kind::kRecv) + 1);

// The end of CallOptions::name, padded with zeros.
using PurposeName = std::array<char, 24>;

// One operation. Its tensors are contiguous and have one device and one dtype; `in` may be `out`, of an all_gather part
// rank() of `out`, and `out` of a reduce_scatter part rank() of `in`.
struct Call {
  Kind kind = Kind::kBarrier;
  Tensor in = {}, out = {};
  std::int64_t count = 0;  // elements of one rank's part
  DType dtype = kUInt8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;  // of sums
  int root = 0;      // or the other rank of send and recv
  int tag = 0;
  // Position among the group's collectives; of send and recv among the messages from one rank to the other.
  std::uint64_t number = 0;
  int rank = 0;                             // the calling rank
  int global_rank = -1, global_root = -1;   // `rank` and `root` in the group of init_process_group; -1: the same
  std::uint32_t failed_steps = 0;           // of this rank so far; of collectives, must be equal on all ranks
  Reduction order = Reduction::kCanonical;  // of floating-point sums: kArrival, kOwnFirst, or the backend's own
  std::uint64_t detail = 0;                 // hash of shape, scale, name and id, which must be equal on all ranks
  PurposeName purpose = {};                 // for error messages
  Phase phase = Phase::kOther;              // of the step; may differ between ranks
  // For all_to_all with parts of different sizes: elements to and from each rank. Empty: `count` each.
  std::vector<std::int64_t> in_parts = {}, out_parts = {};

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kRecv; }
  const Flow& flow() const { return kFlows[static_cast<std::size_t>(kind)]; }
  bool sends(int from) const { return !flow().from_root || from == root; }
  bool receives(int to) const { return !flow().to_root || to == root; }
  std::size_t bytes() const { return static_cast<std::size_t>(count) * item_size(dtype); }  // of one rank's part
  // "all_reduce #12 on rank 0 (f32, 1024 elements)", "send #3 to rank 1 on rank 0 (f32, 1024 elements)",
  // "all_gather #4 on rank 0 (global rank 2) (f32, 10 elements, parameters) for "unit blocks.1""
  std::string describe() const;
};

// The parts of a call that must be equal on all ranks, besides count and detail: kind, dtype, operator, order and root.
// A send and its recv have one signature.
std::uint64_t signature_of(const Call& call);
// Describes a call: "all_reduce of 10 f32 (sum)", "all_gather of 10 f32 for "unit blocks.1"". Peers may send anything,
// so any numbers and bytes are allowed.
std::string call_text(std::uint64_t signature, std::uint64_t count, const PurposeName& purpose);

// "rank 1", or "rank 1 (global rank 5)" if the group of init_process_group numbers the rank otherwise. A negative
// global rank: it is the same.
std::string rank_text(int rank, int global_rank);
// The same for a rank of a group with these `members`, as Rendezvous has them.
std::string rank_text(int rank, const std::vector<int>& members);

// Elements [begin, end).
struct Range {
  std::int64_t begin, end;
  std::int64_t count() const { return end - begin; }
};
// Range r of n of `count` elements, aligned to cache lines of 64 bytes.
Range share_of(std::int64_t count, DType dtype, int r, int n);
// outputs[j] becomes the call's reduction of all `inputs`, in elements [first, first + count); `in_turn`: one after
// another instead of in canonical order.
void combine(const Call& call, std::span<const void* const> inputs, std::span<void* const> outputs, std::int64_t first,
             std::int64_t count, bool in_turn = false);

// Number of operations, and of small ones, that can be in flight before starting another may wait for other ranks.
inline constexpr std::size_t kInFlight = 32, kSmallInFlight = 4;
inline constexpr std::int64_t kSmallBytes = 4096;

// How a rank tells the others that it waits, and for which rank. All groups of a rank that were made from one
// init_process_group share the object: a rank that waits in one group is not the culprit of a timeout in another one.
// Backends derive their own classes.
class Liveness {
 public:
  virtual ~Liveness() = default;
};

class Backend {
 public:
  explicit Backend(const Rendezvous& place) : rank_(place.rank), size_(place.size), members_(place.members) {}
  virtual ~Backend() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // The device on which operations of tensors on `device` run. If it differs, tensors are copied there and back.
  virtual Device device_for(Device device) const { return device.is_cpu() ? device : Device(); }
  // Whether all_to_all may have parts of different sizes.
  virtual bool takes_uneven_parts() const { return false; }
  // Allocates contiguous communication memory on a device on which this backend runs; `call` is a kEmpty.
  virtual Ref<Storage> allocate(const Call& call, std::size_t bytes, Device device) = 0;
  // The address of the same bytes in another rank's communication memory; null if this rank cannot read them.
  virtual void* address_in(int /*rank*/, const void* /*own*/, std::size_t /*bytes*/) const { return nullptr; }
  // Makes the group fail on all ranks, because this one cannot do its part.
  virtual void fail_group(const std::string& /*why*/) {}
  // Whether this rank knows that the group has failed.
  virtual bool has_failed() { return false; }
  // See ProcessGroup::step_failed. `next` is the number of the next collective. Returns how many of this rank's steps
  // have failed; 0 if the backend does not tell the other ranks.
  virtual std::uint32_t step_failed(std::uint64_t /*next*/, const std::string& /*why*/) { return 0; }
  // Shared with the groups that are split from this one. Null if the backend has none.
  virtual std::shared_ptr<Liveness> liveness() const { return nullptr; }
  // Moves the bytes of messages that move only while this rank waits. Returns whether some are left.
  virtual bool progress() { return false; }
  // Frees memory kept for later operations. All ranks call it at the same point.
  virtual void release_staging() {}
  // Starts an operation. Never called in a group of one rank.
  virtual std::shared_ptr<Work> start(Call call) = 0;
  // Adds the bytes that this rank sends for `call`. By default by the closed forms that docs/parallel.md derives:
  // every reduction has an owner for each element, and range r of the elements belongs to rank r.
  virtual void record_traffic(const Call& call, Phase phase, TrafficStats& traffic) const;

 protected:
  std::string text_of(int rank) const { return rank_text(rank, members_); }  // for error messages
  int global_rank(int rank) const { return members_.empty() ? rank : members_[static_cast<std::size_t>(rank)]; }
  std::vector<int> global_ranks(const std::vector<int>& ranks) const;
  // The rank in this group of a global rank, or -1.
  int rank_of_global(int global_rank) const;
  // "rank 1 (global rank 5)"; "global rank 5" if that rank is not in this group.
  std::string text_of_global(int global_rank) const;

  const int rank_, size_;

 private:
  const std::vector<int> members_;  // see Rendezvous
};

// Makes a backend from the user's options and the result of the rendezvous. Meanwhile waits on the store end when a
// rank ends; other waits ask the watch of the rendezvous, which is null without a store.
std::unique_ptr<Backend> make_local(const InitOptions& options, const Rendezvous& place);
std::unique_ptr<Backend> make_shm(const InitOptions& options, const Rendezvous& place);

}  // namespace lockstep::parallel
