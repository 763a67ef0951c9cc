// The layout of each kind of operation in the ranks' blocks, and its tasks.
//
// A rank's region contains the piece (broadcast, all_reduce, reduce), one piece for every rank (all_gather, gather,
// scatter, reduce_scatter), or one input and one output piece for every rank (all_to_all). Rank r's share of the tasks
// is range r of the piece, or the tasks that write part r.
#include <algorithm>
#include <cstring>

#include "lockstep/parallel/comm/backends/shared_group_internal.h"
#include "lockstep/tensor/combine_internal.h"
#include "lockstep/tensor/small_vector.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kTaskBytes = 128 * 1024;  // of one task: much longer than a claim, smaller than the cache
constexpr std::int64_t kSingleTask = 32 * 1024;  // up to this size one rank does all work
constexpr std::int64_t kSingleTaskOfTwo = 1024;  // the same for a group of two ranks

std::int64_t item(const Operation& op) { return static_cast<std::int64_t>(item_size(op.call->dtype)); }

bool has_parts(const Call& call) { return call.flow().in_parts || call.flow().out_parts; }

Range share(const Operation& op, int r, int n) { return share_of(op.count, op.call->dtype, r, n); }

std::byte* region(const Operation& op, int r) { return op.segment->block(r) + op.offset; }

// Returns the address of element k of part p of rank r's region.
std::byte* element(const Operation& op, int r, std::int64_t p, std::int64_t k) {
  return region(op, r) + (p * op.count + k) * item(op);
}

void copy_elements(const Operation& op, void* to, const void* from, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count * item(op)));
}

// Returns the address of the operation's piece of part p of a user's tensor.
std::byte* user_element(const Operation& op, const Tensor& tensor, std::int64_t p) {
  return static_cast<std::byte*>(tensor.raw_data()) + (p * op.call->count + op.first) * item(op);
}

// combine_range with kOwnFirst: each target's sum begins with its own value. Results would overwrite the operands of
// other sums, so they are first written to temporary memory.
void combine_own_first(const Operation& op, int size, std::int64_t p, Range range, Range targets) {
  const auto bytes = static_cast<std::size_t>((range.count()) * item(op));
  std::vector<std::byte> sums(static_cast<std::size_t>(targets.count()) * bytes);
  const auto sum_of = [&](std::int64_t r) { return sums.data() + static_cast<std::size_t>(r - targets.begin) * bytes; };
  for (std::int64_t own = targets.begin; own < targets.end; ++own) {
    SmallVector<const void*, 8> inputs;
    inputs.push_back(element(op, static_cast<int>(own), p, range.begin));
    for (int r = 0; r < size; ++r) {
      if (r != own) inputs.push_back(element(op, r, p, range.begin));
    }
    void* const sum = sum_of(own);
    combine(*op.call, {inputs.begin(), inputs.size()}, {&sum, 1}, 0, range.count(), /*in_turn=*/true);
  }
  for (std::int64_t own = targets.begin; own < targets.end; ++own)
    copy_elements(op, element(op, static_cast<int>(own), p, range.begin), sum_of(own), range.count());
}

// Combines elements [begin, end) of part p of all ranks into part p of `targets`.
void combine_range(const Operation& op, int size, std::int64_t p, Range range, Range targets) {
  if (op.call->order == Reduction::kOwnFirst) return combine_own_first(op, size, p, range, targets);
  SmallVector<const void*, 8> inputs;
  SmallVector<void*, 8> outputs;
  for (int r = 0; r < size; ++r)
    inputs.push_back(element(op, op.order.empty() ? r : op.order[static_cast<std::size_t>(r)], p, 0));
  for (std::int64_t r = targets.begin; r < targets.end; ++r) outputs.push_back(element(op, static_cast<int>(r), p, 0));
  combine(*op.call, {inputs.begin(), inputs.size()}, {outputs.begin(), outputs.size()}, range.begin, range.count(),
          /*in_turn=*/!op.order.empty());
}

// Copies elements [begin, end) of part p from one rank to `targets`.
void spread_range(const Operation& op, int from, std::int64_t p, Range range, Range targets) {
  for (std::int64_t r = targets.begin; r < targets.end; ++r) {
    if (r == from) continue;
    copy_elements(op, element(op, static_cast<int>(r), p, range.begin), element(op, from, p, range.begin),
                  range.count());
  }
}

}  // namespace

std::size_t region_bytes(const Operation& op, int size) {
  const std::int64_t parts = !has_parts(*op.call) ? 1 : op.call->kind == Kind::kAllToAll ? 2 * size : size;
  return static_cast<std::size_t>(parts * op.count * item(op));
}

void copy_in(const Operation& op, int rank, int size) {
  const Call& call = *op.call;
  const auto put = [&](std::int64_t p, std::int64_t user_part) {
    copy_elements(op, element(op, rank, p, 0), user_element(op, call.in, user_part), op.count);
  };
  if (!call.sends(rank)) return;
  if (!call.flow().in_parts) return put(call.flow().out_parts ? rank : 0, 0);
  for (int p = 0; p < size; ++p) put(p, p);
}

void copy_out(const Operation& op, int rank, int size) {
  const Call& call = *op.call;
  const auto take = [&](std::int64_t user_part, std::int64_t p) {
    copy_elements(op, user_element(op, call.out, user_part), element(op, rank, p, 0), op.count);
  };
  if (!call.receives(rank) || (call.kind == Kind::kBroadcast && rank == call.root)) return;
  if (!call.flow().out_parts) return take(0, call.flow().in_parts ? rank : 0);
  for (int p = 0; p < size; ++p) take(p, call.flow().in_parts ? size + p : p);
}

void plan_tasks(Operation& op, int size) {
  op.tasks.assign(static_cast<std::size_t>(size), 0);
  if (op.count == 0) return;
  const bool parts = has_parts(*op.call);
  op.chunk = std::max<std::int64_t>(1, kTaskBytes / item(op));
  if (!parts && op.count * item(op) <= (size == 2 ? kSingleTaskOfTwo : kSingleTask)) {
    op.single_task = true;
    op.chunk = op.count;
    op.tasks[0] = 1;
    return;
  }
  for (int r = 0; r < size; ++r) {
    const Range range = parts ? Range{0, op.count} : share(op, r, size);
    op.tasks[static_cast<std::size_t>(r)] = static_cast<std::uint64_t>((range.count() + op.chunk - 1) / op.chunk);
  }
}

void run_task(const Operation& op, int owner, std::uint64_t task, int size) {
  const Call& call = *op.call;
  const Flow& flow = call.flow();
  const bool parts = has_parts(call);
  const Range all = parts || op.single_task ? Range{0, op.count} : share(op, owner, size);
  const std::int64_t begin = all.begin + static_cast<std::int64_t>(task) * op.chunk;
  const Range range{begin, std::min(all.end, begin + op.chunk)};
  if (call.kind == Kind::kAllToAll) {
    for (int from = 0; from < size; ++from)
      copy_elements(op, element(op, owner, size + from, range.begin), element(op, from, owner, range.begin),
                    range.count());
    return;
  }
  const std::int64_t part = parts ? owner : 0;
  const Range targets = flow.to_root    ? Range{call.root, call.root + 1}
                        : flow.in_parts ? Range{owner, owner + 1}
                                        : Range{0, size};
  if (flow.reduces)
    combine_range(op, size, part, range, targets);
  else
    spread_range(op, flow.from_root ? call.root : owner, part, range, targets);
}

void run_inline(const Operation& op, const void* const* inputs, int rank) {
  const Call& call = *op.call;
  if (call.kind == Kind::kBroadcast) {
    if (rank != call.root) copy_elements(op, call.out.raw_data(), inputs[call.root], op.count);
    return;
  }
  void* const out = call.out.raw_data();
  combine(call, {inputs, 2}, {&out, 1}, 0, op.count);
}

}  // namespace lockstep::parallel
