// all_to_all with parts of different sizes.
#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// Copies between `tensor`, whose parts have `splits` rows, and `parts`, in which each part has `longest` rows.
void move_parts(const Tensor& parts, const Tensor& tensor, const std::vector<std::int64_t>& splits,
                std::int64_t longest, bool packing) {
  std::int64_t row = 0;
  for (std::size_t r = 0; r < splits.size(); row += splits[r], ++r) {
    const std::int64_t at = static_cast<std::int64_t>(r) * longest;
    const Tensor own = raw::slice(tensor, 0, row, row + splits[r], 1),
                 part = raw::slice(parts, 0, at, at + splits[r], 1);
    packing ? raw::copy(own, part) : raw::copy(part, own);
  }
}

}  // namespace

// Exchanges the splits of all ranks and returns the number of rows of the longest part. All ranks throw CommError if
// the rows sent and expected differ.
std::int64_t ProcessGroup::check_all_splits(const std::vector<std::int64_t>& in_splits,
                                            const std::vector<std::int64_t>& out_splits, const CallOptions& options) {
  const auto n = static_cast<std::size_t>(size());
  std::vector<std::int64_t> own = in_splits;
  own.insert(own.end(), out_splits.begin(), out_splits.end());
  const Tensor all = raw::empty({size(), 2, size()}, {.dtype = kInt64});
  all_gather(all, raw::from_bytes(own.data(), {2, size()}, kInt64), options)->wait();
  const std::span<const std::int64_t> splits = all.span<std::int64_t>();
  std::int64_t longest = 1;
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) {
      const std::int64_t sent = splits[2 * n * from + to], expected = splits[2 * n * to + n + from];
      if (sent != expected)
        throw CommError(fmt::format("all_to_all: {} sends {} rows to {}, which expects {}",
                                    rank_text(static_cast<int>(from), place_.members), sent,
                                    rank_text(static_cast<int>(to), place_.members), expected));
      longest = std::max(longest, sent);
    }
  }
  return longest;
}

// For backends that need parts of equal size, pads all parts to the longest, which the ranks exchange first.
std::shared_ptr<Work> ProcessGroup::all_to_all_uneven(const Tensor& out, const Tensor& in,
                                                      const AllToAllOptions& splits, const CallOptions& options) {
  const auto check_splits = [&](const char* role, const std::vector<std::int64_t>& parts, const Tensor& tensor) {
    std::int64_t rows = 0;
    for (const std::int64_t each : parts) rows += each;
    LOCKSTEP_CHECK(tensor.dim() > 0 && std::cmp_equal(parts.size(), size()) && rows == tensor.size(0) &&
                       std::ranges::all_of(parts, [](std::int64_t each) { return each >= 0; }),
                   "all_to_all: {} has {} numbers with sum {}; expected {} numbers whose sum is the rows of {}", role,
                   parts.size(), rows, size(), lockstep::describe(tensor));
  };
  const auto even = [&](const Tensor& t) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(size()), t.dim() > 0 ? t.size(0) / size() : 0);
  };
  const std::vector<std::int64_t> in_splits = splits.in_splits.empty() ? even(in) : splits.in_splits;
  const std::vector<std::int64_t> out_splits = splits.out_splits.empty() ? even(out) : splits.out_splits;
  check_splits("in_splits", in_splits, in);
  check_splits("out_splits", out_splits, out);
  Shape padded = in.shape(), expected = out.shape();
  padded[0] = expected[0] = 1;
  LOCKSTEP_CHECK(in.dtype() == out.dtype() && in.device() == out.device() && padded == expected,
                 "all_to_all: out is {}, in is {}; expected the same but for the number of rows",
                 lockstep::describe(out), lockstep::describe(in));
  const std::int64_t row = padded.numel(), longest = check_all_splits(in_splits, out_splits, options);
  Call call{.kind = Kind::kAllToAll, .count = longest * row};
  if (backend_ && backend_->takes_uneven_parts()) {
    for (const std::int64_t rows : in_splits) call.in_parts.push_back(rows * row);
    for (const std::int64_t rows : out_splits) call.out_parts.push_back(rows * row);
    return start(std::move(call), in, out, options);
  }
  padded[0] = longest * size();
  const Tensor from = raw::zeros(padded, in.options()), to = raw::zeros(padded, in.options());
  move_parts(from, in, in_splits, longest, true);
  return keep(then(start(std::move(call), from, to, options),
                   [to, out, out_splits, longest] { move_parts(to, out, out_splits, longest, false); }));
}

}  // namespace lockstep::parallel
