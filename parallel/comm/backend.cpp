#include "lockstep/parallel/comm/backend_internal.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

// Returns ' for "unit blocks.1"', or nothing without a name.
std::string purpose_text(const PurposeName& purpose) {
  const std::string_view name(purpose.data(), strnlen(purpose.data(), purpose.size()));
  return name.empty() ? "" : " for " + in_quotes(name);
}

}  // namespace

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
  using enum raw::CombineOp;
  constexpr raw::CombineOp kOps[] = {kSum, kSum, kMin, kMax, kProduct};
  return kOps[static_cast<std::size_t>(op)];
}

Range share_of(std::int64_t count, DType dtype, int r, int n) {
  const auto line = static_cast<std::int64_t>(64 / item_size(dtype));
  const std::int64_t lines = (count + line - 1) / line;
  return {std::min(count, lines * r / n * line), std::min(count, lines * (r + 1) / n * line)};
}

void combine(const Call& call, std::span<const void* const> inputs, std::span<void* const> outputs, std::int64_t first,
             std::int64_t count, bool in_turn) {
  raw::combine({.inputs = inputs,
                .outputs = outputs,
                .dtype = call.dtype,
                .op = combine_op(call.op),
                .scale = call.scale,
                .in_turn = in_turn},
               first, count);
}

void Backend::record_traffic(const Call& call, Phase phase, TrafficStats& traffic) const {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const auto range = [&](int r) { return call.count * (r + 1) / size() - call.count * r / size(); };
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || !call.sends(rank()) || !call.receives(r)) continue;
    const std::int64_t elements = call.kind == Kind::kAllReduce ? range(r) + range(rank())
                                  : call.in_parts.empty()       ? call.count
                                                                : call.in_parts[static_cast<std::size_t>(r)];
    traffic.add(global_rank(rank()), global_rank(r), phase, elements * item);
  }
}

std::uint64_t signature_of(const Call& call) {
  const Kind kind = call.is_message() ? Kind::kSend : call.kind;
  const int root = call.is_message() ? 0 : call.root;
  return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(call.dtype) << 8 |
         static_cast<std::uint64_t>(call.op) << 16 | static_cast<std::uint64_t>(call.order) << 24 |
         static_cast<std::uint64_t>(root) << 32;
}

std::string call_text(std::uint64_t signature, std::uint64_t count, const PurposeName& purpose) {
  const auto byte = [&](int at) { return static_cast<std::uint8_t>(signature >> 8 * at); };
  if (byte(0) > static_cast<std::uint8_t>(Kind::kRecv) || byte(1) >= kDTypeCount ||
      byte(2) > static_cast<std::uint8_t>(ReduceOp::kProduct))
    return "something else";
  const auto kind = static_cast<Kind>(byte(0));
  const char* const order = order_text(static_cast<Reduction>(byte(3)));
  if (kind == Kind::kBarrier) return "barrier" + purpose_text(purpose);
  if (kind == Kind::kEmpty) return fmt::format("empty of {} bytes", count);
  std::string text = fmt::format("{} of {} {}", name(kind), count, lockstep::name(static_cast<DType>(byte(1))));
  const Flow& flow = kFlows[byte(0)];
  if (flow.reduces) text += fmt::format(" ({}{}{})", name(static_cast<ReduceOp>(byte(2))), *order ? ", " : "", order);
  if ((flow.from_root || flow.to_root) && kind != Kind::kSend) text += fmt::format(" with root {}", signature >> 32);
  return text + purpose_text(purpose);
}

std::string rank_text(int rank, int global_rank) {
  return global_rank < 0 || rank == global_rank ? fmt::format("rank {}", rank)
                                                : fmt::format("rank {} (global rank {})", rank, global_rank);
}

std::string rank_text(int rank, const std::vector<int>& members) {
  const bool is_member = rank >= 0 && std::cmp_less(rank, members.size());
  return rank_text(rank, is_member ? members[static_cast<std::size_t>(rank)] : rank);
}

std::vector<int> Backend::global_ranks(const std::vector<int>& ranks) const {
  std::vector<int> global;
  for (const int rank : ranks) global.push_back(global_rank(rank));
  return global;
}

int Backend::rank_of_global(int global_rank) const {
  if (members_.empty()) return global_rank >= 0 && global_rank < size_ ? global_rank : -1;
  const auto found = std::ranges::find(members_, global_rank);
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

std::string Backend::text_of_global(int global_rank) const {
  const int rank = rank_of_global(global_rank);
  return rank < 0 ? fmt::format("global rank {}", global_rank) : text_of(rank);
}

std::string Call::describe() const {
  const std::string peer =
      is_message() ? fmt::format(" {} {}", kind == Kind::kSend ? "to" : "from", rank_text(root, global_root)) : "";
  std::string details = kind == Kind::kBarrier ? "" : fmt::format("{}, {} elements", lockstep::name(dtype), count);
  if (phase != Phase::kOther) details += fmt::format("{}{}", details.empty() ? "" : ", ", parallel::name(phase));
  if (!details.empty()) details = " (" + details + ")";
  return fmt::format("{} #{}{} on {}{}{}", name(kind), number, peer, rank_text(rank, global_rank), details,
                     purpose_text(purpose));
}

}  // namespace lockstep::parallel
