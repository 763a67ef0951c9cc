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

struct Range {
  std::int64_t begin, end;
};

std::int64_t item(const Operation& op) { return static_cast<std::int64_t>(item_size(op.call->dtype)); }

bool has_parts(Kind kind) {
  return kind == Kind::kAllGather || kind == Kind::kGather || kind == Kind::kScatter || kind == Kind::kReduceScatter ||
         kind == Kind::kAllToAll;
}

// Returns range r of n of `count` elements, aligned to cache lines of 64 bytes.
Range share(const Operation& op, int r, int n) {
  const std::int64_t line = 64 / item(op), lines = (op.count + line - 1) / line;
  return {std::min(op.count, lines * r / n * line), std::min(op.count, lines * (r + 1) / n * line)};
}

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
  const auto bytes = static_cast<std::size_t>((range.end - range.begin) * item(op));
  std::vector<std::byte> sums(static_cast<std::size_t>(targets.end - targets.begin) * bytes);
  const auto sum_of = [&](std::int64_t r) { return sums.data() + static_cast<std::size_t>(r - targets.begin) * bytes; };
  for (std::int64_t own = targets.begin; own < targets.end; ++own) {
    SmallVector<const void*, 8> inputs;
    inputs.push_back(element(op, static_cast<int>(own), p, range.begin));
    for (int r = 0; r < size; ++r) {
      if (r != own) inputs.push_back(element(op, r, p, range.begin));
    }
    void* const sum = sum_of(own);
    raw::combine({.inputs = {inputs.begin(), inputs.size()},
                  .outputs = {&sum, 1},
                  .dtype = op.call->dtype,
                  .op = combine_op(op.call->op),
                  .scale = op.call->scale,
                  .in_turn = true},
                 0, range.end - range.begin);
  }
  for (std::int64_t own = targets.begin; own < targets.end; ++own)
    copy_elements(op, element(op, static_cast<int>(own), p, range.begin), sum_of(own), range.end - range.begin);
}

// Combines elements [begin, end) of part p of all ranks into part p of `targets`.
void combine_range(const Operation& op, int size, std::int64_t p, Range range, Range targets) {
  if (op.call->order == Reduction::kOwnFirst) return combine_own_first(op, size, p, range, targets);
  SmallVector<const void*, 8> inputs;
  SmallVector<void*, 8> outputs;
  for (int r = 0; r < size; ++r)
    inputs.push_back(element(op, op.order.empty() ? r : op.order[static_cast<std::size_t>(r)], p, 0));
  for (std::int64_t r = targets.begin; r < targets.end; ++r) outputs.push_back(element(op, static_cast<int>(r), p, 0));
  raw::combine({.inputs = {inputs.begin(), inputs.size()},
                .outputs = {outputs.begin(), outputs.size()},
                .dtype = op.call->dtype,
                .op = combine_op(op.call->op),
                .scale = op.call->scale,
                .in_turn = !op.order.empty()},
               range.begin, range.end - range.begin);
}

// Copies elements [begin, end) of part p from one rank to `targets`.
void spread_range(const Operation& op, int from, std::int64_t p, Range range, Range targets) {
  for (std::int64_t r = targets.begin; r < targets.end; ++r) {
    if (r == from) continue;
    copy_elements(op, element(op, static_cast<int>(r), p, range.begin), element(op, from, p, range.begin),
                  range.end - range.begin);
  }
}

}  // namespace

std::size_t region_bytes(const Operation& op, int size) {
  const std::int64_t parts = !has_parts(op.call->kind) ? 1 : op.call->kind == Kind::kAllToAll ? 2 * size : size;
  return static_cast<std::size_t>(parts * op.count * item(op));
}

void copy_in(const Operation& op, int rank, int size) {
  const Call& call = *op.call;
  const auto put = [&](std::int64_t p, std::int64_t user_part) {
    copy_elements(op, element(op, rank, p, 0), user_element(op, call.in, user_part), op.count);
  };
  switch (call.kind) {
    case Kind::kBroadcast:
      if (rank == call.root) put(0, 0);
      return;
    case Kind::kAllReduce:
    case Kind::kReduce:
      return put(0, 0);
    case Kind::kAllGather:
    case Kind::kGather:
      return put(rank, 0);
    case Kind::kScatter:
      for (int p = 0; p < size && rank == call.root; ++p) put(p, p);
      return;
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
      for (int p = 0; p < size; ++p) put(p, p);
      return;
    default:
      return;
  }
}

void copy_out(const Operation& op, int rank, int size) {
  const Call& call = *op.call;
  const auto take = [&](std::int64_t user_part, std::int64_t p) {
    copy_elements(op, user_element(op, call.out, user_part), element(op, rank, p, 0), op.count);
  };
  switch (call.kind) {
    case Kind::kBroadcast:
      if (rank != call.root) take(0, 0);
      return;
    case Kind::kAllReduce:
      return take(0, 0);
    case Kind::kReduce:
      if (rank == call.root) take(0, 0);
      return;
    case Kind::kGather:
      if (rank != call.root) return;
      [[fallthrough]];
    case Kind::kAllGather:
      for (int p = 0; p < size; ++p) take(p, p);
      return;
    case Kind::kScatter:
    case Kind::kReduceScatter:
      return take(0, rank);
    case Kind::kAllToAll:
      for (int p = 0; p < size; ++p) take(p, size + p);
      return;
    default:
      return;
  }
}

void plan_tasks(Operation& op, int size) {
  op.tasks.assign(static_cast<std::size_t>(size), 0);
  if (op.count == 0) return;
  const bool parts = has_parts(op.call->kind);
  op.chunk = std::max<std::int64_t>(1, kTaskBytes / item(op));
  if (!parts && op.count * item(op) <= (size == 2 ? kSingleTaskOfTwo : kSingleTask)) {
    op.single_task = true;
    op.chunk = op.count;
    op.tasks[0] = 1;
    return;
  }
  for (int r = 0; r < size; ++r) {
    const Range range = parts ? Range{0, op.count} : share(op, r, size);
    op.tasks[static_cast<std::size_t>(r)] =
        static_cast<std::uint64_t>((range.end - range.begin + op.chunk - 1) / op.chunk);
  }
}

void run_task(const Operation& op, int owner, std::uint64_t task, int size) {
  const Call& call = *op.call;
  Range all{0, op.count};
  if (!has_parts(call.kind) && !op.single_task) all = share(op, owner, size);
  const std::int64_t begin = all.begin + static_cast<std::int64_t>(task) * op.chunk;
  const Range range{begin, std::min(all.end, begin + op.chunk)};
  const Range everyone{0, size}, root{call.root, call.root + 1};
  switch (call.kind) {
    case Kind::kBroadcast:
      return spread_range(op, call.root, 0, range, everyone);
    case Kind::kAllReduce:
      return combine_range(op, size, 0, range, everyone);
    case Kind::kReduce:
      return combine_range(op, size, 0, range, root);
    case Kind::kAllGather:
      return spread_range(op, owner, owner, range, everyone);
    case Kind::kGather:
      return spread_range(op, owner, owner, range, root);
    case Kind::kScatter:
      return spread_range(op, call.root, owner, range, {owner, owner + 1});
    case Kind::kReduceScatter:
      return combine_range(op, size, owner, range, {owner, owner + 1});
    case Kind::kAllToAll:
      for (int from = 0; from < size; ++from)
        copy_elements(op, element(op, owner, size + from, range.begin), element(op, from, owner, range.begin),
                      range.end - range.begin);
      return;
    default:
      return;
  }
}

void run_inline(const Operation& op, const void* const* inputs, int rank) {
  const Call& call = *op.call;
  if (call.kind == Kind::kBroadcast) {
    if (rank != call.root) copy_elements(op, call.out.raw_data(), inputs[call.root], op.count);
    return;
  }
  void* const out = call.out.raw_data();
  raw::combine({.inputs = {inputs, 2},
                .outputs = {&out, 1},
                .dtype = call.dtype,
                .op = combine_op(call.op),
                .scale = call.scale},
               0, op.count);
}

}  // namespace lockstep::parallel
