#include "lockstep/parallel/comm/backends/poison_internal.h"

#include "lockstep/tensor/check_internal.h"

namespace lockstep::parallel {

std::string poison_text(Poison reason, int culprit, const std::string& lost) {
  switch (reason) {
    case Poison::kLost:
      return fmt::format("rank {} is gone{}{}", culprit, lost.empty() ? "" : ": ", lost);
    case Poison::kLeft:
    case Poison::kLeftByError:
      return fmt::format("rank {} has left the group", culprit);
    case Poison::kLate:
      return fmt::format("rank {} did not arrive in time, as another rank reports", culprit);
    case Poison::kDisagreed:
      return fmt::format("ranks disagree: rank {} called another operation, as another rank reports", culprit);
    default:
      return fmt::format("the group has failed because of rank {}", culprit);
  }
}

std::string Announcement::text() const {
  const auto called = static_cast<Kind>(kind);
  const auto reduce = static_cast<ReduceOp>(op);
  if (kind > static_cast<std::uint64_t>(Kind::kRecv) || dtype >= kDTypeCount ||
      op > static_cast<std::uint64_t>(ReduceOp::kProduct))
    return "something else";
  if (called == Kind::kBarrier) return "barrier";
  if (called == Kind::kEmpty) return fmt::format("empty of {} bytes", count);
  std::string text = fmt::format("{} of {} {}", name(called), count, lockstep::name(static_cast<DType>(dtype)));
  if (called == Kind::kAllReduce || called == Kind::kReduce || called == Kind::kReduceScatter)
    text += fmt::format(" ({}{}{})", name(reduce), *order_text(order) ? ", " : "", order_text(order));
  if (called == Kind::kBroadcast || called == Kind::kReduce || called == Kind::kGather || called == Kind::kScatter)
    text += fmt::format(" with root {}", root);
  return text;
}

}  // namespace lockstep::parallel
