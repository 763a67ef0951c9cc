// Wrong: the sum of weighted values is not rescaled when a later tile has a larger score.
#include <algorithm>
#include <cmath>
#include <limits>

#include "adapters.h"

namespace exercises {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double scale_of(const ls::Tensor& q) { return 1 / std::sqrt(static_cast<double>(q.size(2))); }

// The tile of x (heads, time, ...) that begins at `from`, as a view.
ls::Tensor tile_of(const ls::Tensor& x, std::int64_t from, std::int64_t tile) {
  return x.slice(1, from, std::min(from + tile, x.size(1)));
}

// The scores of one tile of queries with one tile of keys: (heads, queries, keys).
ls::Tensor scores_of(const ls::Tensor& q, const ls::Tensor& k, bool diagonal) {
  const ls::Tensor scores = ls::matmul(q, k.transpose(1, 2)).mul_(scale_of(q));
  if (!diagonal) return scores;
  return ls::masked_fill(scores, ls::triu(ls::ones({q.size(1), q.size(1)}), 1) > 0, -kInfinity);
}

}  // namespace

Attended attention_by_tiles(const ls::Tensor& q, const ls::Tensor& k, const ls::Tensor& v, std::int64_t tile) {
  const std::int64_t heads = q.size(0), time = q.size(1);
  const Attended result{.out = ls::empty(q.shape()), .log_sums = ls::empty({heads, time})};
  for (std::int64_t row = 0; row < time; row += tile) {
    const ls::Tensor queries = tile_of(q, row, tile), out = tile_of(result.out, row, tile).zero_();
    ls::Tensor largest = ls::full({heads, queries.size(1), 1}, -kInfinity), sum = ls::zeros(largest.shape());
    for (std::int64_t column = 0; column <= row; column += tile) {
      const ls::Tensor scores = scores_of(queries, tile_of(k, column, tile), column == row);
      const ls::Tensor before = largest;
      largest = ls::maximum(largest, ls::amax(scores, {-1}, true));
      const ls::Tensor weights = ls::exp(scores - largest), shrink = ls::exp(before - largest);
      sum = sum * shrink + ls::sum(weights, {-1}, true);
      out.add_(ls::matmul(weights, tile_of(v, column, tile)));
    }
    out.div_(sum);
    tile_of(result.log_sums, row, tile).copy_((largest + ls::log(sum)).squeeze(-1));
  }
  return result;
}

AttentionGradients attention_backward_by_tiles(const ls::Tensor& grad, const ls::Tensor& q, const ls::Tensor& k,
                                               const ls::Tensor& v, const Attended& forward, std::int64_t tile) {
  const AttentionGradients result{.q = ls::zeros_like(q), .k = ls::zeros_like(k), .v = ls::zeros_like(v)};
  for (std::int64_t row = 0; row < q.size(1); row += tile) {
    const ls::Tensor queries = tile_of(q, row, tile), grads = tile_of(grad, row, tile),
                     log_sums = tile_of(forward.log_sums, row, tile).unsqueeze(-1),
                     dot = ls::sum(grads * tile_of(forward.out, row, tile), {-1}, true);
    for (std::int64_t column = 0; column <= row; column += tile) {
      const ls::Tensor keys = tile_of(k, column, tile);
      const ls::Tensor weights = ls::exp(scores_of(queries, keys, column == row) - log_sums);
      tile_of(result.v, column, tile).add_(ls::matmul(weights.transpose(1, 2), grads));
      const ls::Tensor grad_scores =
          ls::matmul(grads, tile_of(v, column, tile).transpose(1, 2)).sub_(dot).mul_(weights).mul_(scale_of(q));
      tile_of(result.q, row, tile).add_(ls::matmul(grad_scores, keys));
      tile_of(result.k, column, tile).add_(ls::matmul(grad_scores.transpose(1, 2), queries));
    }
  }
  return result;
}

}  // namespace exercises
