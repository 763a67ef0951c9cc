// What a backend implements: start one checked, contiguous operation. Everything users see (checks, strided tensors,
// numbering, error texts, traffic) is done by ProcessGroup, once for all backends.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/combine_internal.h"

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
// Of an order for teaching: "in order of arrival". Of the others, and of what is none: "".
const char* order_text(Reduction order);
raw::CombineOp combine_op(ReduceOp op);

// One operation. Tensors are contiguous, on one device, and of one dtype; `in` may be `out`.
struct Call {
  Kind kind = Kind::kBarrier;
  Tensor in = {}, out = {};
  std::int64_t count = 0;  // elements of one rank's part
  DType dtype = kUInt8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;  // of sums
  int root = 0;      // or the other rank of send and recv
  int tag = 0;
  // Among the collectives of the group; of send and recv among the messages from the one rank to the other.
  std::uint64_t number = 0;
  int rank = 0;                             // that calls
  Reduction order = Reduction::kCanonical;  // of floating-point sums: kArrival, kOwnFirst, or the backend's own
  std::uint64_t detail = 0;                 // the same on all ranks: shape and scale, hashed
  // Of all_to_all with parts of different sizes: elements to and from each rank. Empty: `count` each.
  std::vector<std::int64_t> in_parts = {}, out_parts = {};

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kRecv; }
  // "all_reduce #12 on rank 0 (f32, 1024 elements)", "send #3 to rank 1 on rank 0 (f32, 1024 elements)"
  std::string describe() const;
};

// So many operations can be started before one more may wait for other ranks; of small ones fewer.
inline constexpr std::size_t kInFlight = 32, kSmallInFlight = 4;
inline constexpr std::int64_t kSmallBytes = 4096;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  // On which device the operations of tensors on `device` run: what is elsewhere is copied there and back.
  virtual Device device_for(Device device) const { return device.is_cpu() ? device : Device(); }
  // Whether all_to_all may have parts of different sizes.
  virtual bool takes_uneven_parts() const { return false; }
  // Contiguous communication memory of `bytes` on a device that it operates on itself; `call` (kEmpty) says what for.
  virtual Ref<Storage> allocate(const Call& call, std::size_t bytes, Device device) = 0;
  // Gives back what it keeps for the next operation. All ranks call it at the same point.
  virtual void release_staging() {}
  // Starts an operation; groups of one rank never come here.
  virtual std::shared_ptr<Work> start(Call call) = 0;
  // Adds the bytes that this rank sends for `call`. By default by the closed forms that docs/parallel.md derives: every
  // reduction has an owner for each element, and range r of the elements belongs to rank r.
  virtual void record_traffic(const Call& call, Phase phase, TrafficStats& traffic) const;
};

// A backend is made from the user's options and this rank's place among the others. While it is made, waits of the place's
// store end when a rank ends; waits of other kinds ask the place's watch, which is null without a store.
std::unique_ptr<Backend> make_local(const InitOptions& options, const Rendezvous& place);
std::unique_ptr<Backend> make_shm(const InitOptions& options, const Rendezvous& place);

}  // namespace lockstep::parallel
