// The interface of a backend, which starts checked, contiguous operations. ProcessGroup does the rest once for all
// backends: checks, strided tensors, numbering, error texts, traffic counters.
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
// Describes an order for teaching, for example "in order of arrival". Returns "" for any other value.
const char* order_text(Reduction order);
raw::CombineOp combine_op(ReduceOp op);

// One operation. Its tensors are contiguous and have one device and one dtype; `in` may be `out`.
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
  Reduction order = Reduction::kCanonical;  // of floating-point sums: kArrival, kOwnFirst, or the backend's own
  std::uint64_t detail = 0;                 // hash of shape and scale, which must be equal on all ranks
  // For all_to_all with parts of different sizes: elements to and from each rank. Empty: `count` each.
  std::vector<std::int64_t> in_parts = {}, out_parts = {};

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kRecv; }
  // "all_reduce #12 on rank 0 (f32, 1024 elements)", "send #3 to rank 1 on rank 0 (f32, 1024 elements)"
  std::string describe() const;
};

// Number of operations, and of small ones, that can be in flight before starting another may wait for other ranks.
inline constexpr std::size_t kInFlight = 32, kSmallInFlight = 4;
inline constexpr std::int64_t kSmallBytes = 4096;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  // The device on which operations of tensors on `device` run. If it differs, tensors are copied there and back.
  virtual Device device_for(Device device) const { return device.is_cpu() ? device : Device(); }
  // Whether all_to_all may have parts of different sizes.
  virtual bool takes_uneven_parts() const { return false; }
  // Allocates contiguous communication memory on a device on which this backend runs; `call` is a kEmpty.
  virtual Ref<Storage> allocate(const Call& call, std::size_t bytes, Device device) = 0;
  // Frees memory kept for later operations. All ranks call it at the same point.
  virtual void release_staging() {}
  // Starts an operation. Never called in a group of one rank.
  virtual std::shared_ptr<Work> start(Call call) = 0;
  // Adds the bytes that this rank sends for `call`. By default by the closed forms that docs/parallel.md derives:
  // every reduction has an owner for each element, and range r of the elements belongs to rank r.
  virtual void record_traffic(const Call& call, Phase phase, TrafficStats& traffic) const;
};

// Makes a backend from the user's options and the result of the rendezvous. Meanwhile waits on the store end when a
// rank ends; other waits ask the watch of the rendezvous, which is null without a store.
std::unique_ptr<Backend> make_local(const InitOptions& options, const Rendezvous& place);
std::unique_ptr<Backend> make_shm(const InitOptions& options, const Rendezvous& place);

}  // namespace lockstep::parallel
