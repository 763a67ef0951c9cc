// The layout of each kind of operation in the ranks' blocks, and its tasks.
//
// On the direct path inputs and outputs are the users' tensors. On the staged path a rank's region of the arena
// contains the piece (broadcast, all_reduce, reduce), one piece for every rank (all_gather, gather, scatter,
// reduce_scatter), or one input and one output piece for every rank (all_to_all). There, input and output share memory
// wherever they have the same elements, as with all_gather and reduce_scatter in place.
//
// Rank r's share of the tasks is range r of the piece, or the tasks that write rank r's output.
#include <algorithm>
#include <cstring>

#include "lockstep/base/small_vector.h"
#include "lockstep/parallel/comm/backends/shared_group_internal.h"
#include "lockstep/tensor/ops/combine_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kTaskBytes = 128 * 1024;  // of one task: much longer than a claim, smaller than the cache
constexpr std::int64_t kSingleTask = 32 * 1024;  // up to this size one rank does all work
constexpr std::int64_t kSingleTaskOfTwo = 1024;  // the same for a group of two ranks

std::int64_t item(const Operation& op) { return static_cast<std::int64_t>(item_size(op.call->dtype)); }

Range share(const Operation& op, int r, int n) { return share_of(op.count, op.call->dtype, r, n); }

// Returns the address of element k of rank r's input; of part p, if it has parts.
std::byte* input(const Operation& op, int r, std::int64_t p, std::int64_t k) {
  return op.in.of(r) + ((op.call->flow().in_parts ? p * op.count : 0) + k) * item(op);
}

// The same for rank r's output.
std::byte* output(const Operation& op, int r, std::int64_t p, std::int64_t k) {
  return op.out.of(r) + ((op.call->flow().out_parts ? p * op.count : 0) + k) * item(op);
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
void combine_own_first(const Operation& op, int size, int p, Range range, Range targets) {
  const auto bytes = static_cast<std::size_t>((range.count()) * item(op));
  std::vector<std::byte> sums(static_cast<std::size_t>(targets.count()) * bytes);
  const auto sum_of = [&](std::int64_t r) { return sums.data() + static_cast<std::size_t>(r - targets.begin) * bytes; };
  for (std::int64_t own = targets.begin; own < targets.end; ++own) {
    SmallVector<const void*, 8> inputs;
    inputs.push_back(input(op, static_cast<int>(own), p, range.begin));
    for (int r = 0; r < size; ++r) {
      if (r != own) inputs.push_back(input(op, r, p, range.begin));
    }
    void* const sum = sum_of(own);
    combine(*op.call, {inputs.begin(), inputs.size()}, {&sum, 1}, 0, range.count(), /*in_turn=*/true);
  }
  for (std::int64_t own = targets.begin; own < targets.end; ++own)
    copy_elements(op, output(op, static_cast<int>(own), 0, range.begin), sum_of(own), range.count());
}

// Combines elements [begin, end) of part p of all ranks' inputs into the outputs of `targets`.
void combine_range(const Operation& op, int size, int p, Range range, Range targets) {
  if (op.call->order == Reduction::kOwnFirst) return combine_own_first(op, size, p, range, targets);
  SmallVector<const void*, 8> inputs;
  SmallVector<void*, 8> outputs;
  for (int r = 0; r < size; ++r)
    inputs.push_back(input(op, op.order.empty() ? r : op.order[static_cast<std::size_t>(r)], p, 0));
  for (std::int64_t r = targets.begin; r < targets.end; ++r) outputs.push_back(output(op, static_cast<int>(r), 0, 0));
  combine(*op.call, {inputs.begin(), inputs.size()}, {outputs.begin(), outputs.size()}, range.begin, range.count(),
          /*in_turn=*/!op.order.empty());
}

// Copies elements [begin, end) of what `from` sends to `to`.
void copy_range(const Operation& op, int from, int to, Range range) {
  const std::byte* const source = input(op, from, to, range.begin);
  std::byte* const target = output(op, to, from, range.begin);
  if (source != target) copy_elements(op, target, source, range.count());
}

}  // namespace

std::size_t region_bytes(const Operation& op, int size) {
  const std::int64_t parts = !op.call->flow().has_parts() ? 1 : op.call->kind == Kind::kAllToAll ? 2 * size : size;
  return static_cast<std::size_t>(parts * op.count * item(op));
}

// Sets the locations of a staged operation's input and output in its regions.
void lay_out(Operation& op, const Segment& arena, int size) {
  const Flow& flow = op.call->flow();
  const auto part = static_cast<std::size_t>(op.count * item(op));
  op.in = op.out = {.segment = &arena, .offset = op.region};
  if (flow.in_parts && flow.out_parts)
    op.out.offset += static_cast<std::size_t>(size) * part;
  else if (flow.has_parts())
    (flow.in_parts ? op.out : op.in).step = part;
}

void copy_in(const Operation& op, int rank, int size) {
  const Call& call = *op.call;
  if (!call.sends(rank)) return;
  for (int p = 0; p < (call.flow().in_parts ? size : 1); ++p)
    copy_elements(op, input(op, rank, p, 0), user_element(op, call.in, p), op.count);
}

void copy_out(const Operation& op, int rank, int size) {
  const Call& call = *op.call;
  if (!call.receives(rank) || (call.kind == Kind::kBroadcast && rank == call.root)) return;
  for (int p = 0; p < (call.flow().out_parts ? size : 1); ++p)
    copy_elements(op, user_element(op, call.out, p), output(op, rank, p, 0), op.count);
}

void plan_tasks(Operation& op, int size) {
  op.tasks.assign(static_cast<std::size_t>(size), 0);
  if (op.count == 0) return;
  const bool parts = op.call->flow().has_parts();
  op.chunk = std::max<std::int64_t>(1, kTaskBytes / item(op));
  if (!parts && op.count * item(op) <= (size == 2 ? kSingleTaskOfTwo : kSingleTask)) {
    op.single_task = true;
    op.chunk = op.count;
    op.tasks[0] = 1;
    return;
  }
  for (int r = 0; r < size; ++r) {
    if (parts && !op.call->receives(r)) continue;
    const Range range = parts ? Range{0, op.count} : share(op, r, size);
    op.tasks[static_cast<std::size_t>(r)] = static_cast<std::uint64_t>((range.count() + op.chunk - 1) / op.chunk);
  }
}

void run_task(const Operation& op, int owner, std::uint64_t task, int size) {
  const Call& call = *op.call;
  const Flow& flow = call.flow();
  const bool parts = flow.has_parts();
  const Range all = parts || op.single_task ? Range{0, op.count} : share(op, owner, size);
  const std::int64_t begin = all.begin + static_cast<std::int64_t>(task) * op.chunk;
  const Range range{begin, std::min(all.end, begin + op.chunk)};
  const Range targets = parts          ? Range{owner, owner + 1}
                        : flow.to_root ? Range{call.root, call.root + 1}
                                       : Range{0, size};
  if (flow.reduces) return combine_range(op, size, owner, range, targets);
  for (std::int64_t to = targets.begin; to < targets.end; ++to) {
    for (int k = 0; k < size; ++k) {  // tasks of different owners read from different ranks at a time
      const int from = (static_cast<int>(to) + k) % size;
      if (call.sends(from)) copy_range(op, from, static_cast<int>(to), range);
    }
  }
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
