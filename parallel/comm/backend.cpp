#include "lockstep/parallel/comm/backend_internal.h"

#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

const char* name(Kind kind) {
  constexpr const char* kNames[] = {"broadcast",      "all_reduce", "reduce",  "all_gather", "gather", "scatter",
                                    "reduce_scatter", "all_to_all", "barrier", "empty",      "send",   "recv"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "avg", "min", "max", "product"};
  return kNames[static_cast<std::size_t>(op)];
}

const char* order_text(Reduction order) {
  if (order == Reduction::kArrival) return "in order of arrival";
  return order == Reduction::kOwnFirst ? "with each rank's own value first" : "";
}

raw::CombineOp combine_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return raw::CombineOp::kMin;
    case ReduceOp::kMax:
      return raw::CombineOp::kMax;
    case ReduceOp::kProduct:
      return raw::CombineOp::kProduct;
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      break;
  }
  return raw::CombineOp::kSum;
}

void Backend::record_traffic(const Call& call, Phase phase, TrafficStats& traffic) const {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const auto range = [&](int r) { return (call.count * (r + 1) / size() - call.count * r / size()) * item; };
  const auto to_all_others = [&](auto bytes) {
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) traffic.add(rank(), r, phase, bytes(r));
    }
  };
  const auto part = [&](int) { return call.count * item; };
  switch (call.kind) {
    case Kind::kAllReduce:
      return to_all_others([&](int r) { return range(r) + range(rank()); });
    case Kind::kAllGather:
    case Kind::kReduceScatter:
      return to_all_others(part);
    case Kind::kAllToAll:
      if (call.in_parts.empty()) return to_all_others(part);
      return to_all_others([&](int r) { return call.in_parts[static_cast<std::size_t>(r)] * item; });
    case Kind::kBroadcast:
    case Kind::kScatter:
      if (rank() == call.root) to_all_others(part);
      return;
    case Kind::kReduce:
    case Kind::kGather:
    case Kind::kSend:
      if (rank() != call.root) traffic.add(rank(), call.root, phase, call.count * item);
      return;
    case Kind::kRecv:
    case Kind::kBarrier:
    case Kind::kEmpty:
      return;
  }
}

std::string Call::describe() const {
  const std::string peer = is_message() ? fmt::format(" {} rank {}", kind == Kind::kSend ? "to" : "from", root) : "";
  const std::string start = fmt::format("{} #{}{} on rank {}", name(kind), number, peer, rank);
  if (kind == Kind::kBarrier) return start;
  return fmt::format("{} ({}, {} elements)", start, lockstep::name(dtype), count);
}

}  // namespace lockstep::parallel
