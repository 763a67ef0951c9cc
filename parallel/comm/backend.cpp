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

std::string Call::describe() const {
  const std::string peer = is_message() ? fmt::format(" {} rank {}", kind == Kind::kSend ? "to" : "from", root) : "";
  const std::string start = fmt::format("{} #{}{} on rank {}", name(kind), number, peer, rank);
  if (kind == Kind::kBarrier) return start;
  return fmt::format("{} ({}, {} elements)", start, lockstep::name(dtype), count);
}

}  // namespace lockstep::parallel
