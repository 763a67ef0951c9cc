#include "lockstep/tensor/ops/line_squares_internal.h"

#include <algorithm>

#include "lockstep/tensor/kernels/kernels_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::raw {
namespace {

std::int64_t elements_of_line(const Tensor& x) { return kLineBytes / static_cast<std::int64_t>(item_size(x.dtype())); }

}  // namespace

LineCut cut_lines(const Tensor& x, std::int64_t first) {
  const std::int64_t elements = elements_of_line(x), whole = x.numel() / elements;
  const std::int64_t before = std::min((kBlockLines - first % kBlockLines) % kBlockLines, whole);
  const std::int64_t blocks = (whole - before) / kBlockLines;
  const std::int64_t lines = (x.numel() + elements - 1) / elements;  // the last one may be incomplete
  return {before, blocks, lines - before - blocks * kBlockLines};
}

Tensor line_squares(const Tensor& x, std::int64_t first) {
  const auto [before, blocks, after] = cut_lines(x, first);
  Tensor out = empty({before + blocks + after}, {.dtype = kFloat64, .device = x.device()});
  const KernelTable& table = kernels(x.device());
  const auto* in = static_cast<const std::byte*>(x.raw_data());
  auto* sums = static_cast<double*>(out.raw_data());
  const std::int64_t elements = elements_of_line(x), rest = x.numel() - (before + blocks * kBlockLines) * elements;
  if (before > 0) table.line_squares(in, sums, before * elements, x.dtype());
  in += before * kLineBytes, sums += before;
  if (blocks > 0) table.block_squares(in, sums, blocks, x.dtype());
  in += blocks * kBlockLines * kLineBytes, sums += blocks;
  if (after > 0) table.line_squares(in, sums, rest, x.dtype());
  return out;
}

}  // namespace lockstep::raw
