// Attention by tiles (Dao et al., "FlashAttention", 2022): no (time, time) matrix is stored.
//
// A tile of scores is kept transposed, as (keys, queries): the softmax over the keys is then arithmetic between whole
// registers of queries, and both products read their operands without another transposition. Tiles follow from the
// shape alone, and every sum runs in order of the keys or queries, so the bits depend on nothing else.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/cpu/tile_product_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"
#include "lockstep/tensor/ops/attention_internal.h"
#include "lockstep/tensor/random/philox_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

using raw::Attention;
using raw::attention_row;
using raw::AttentionOperand;

constexpr std::int64_t kSide = raw::kAttentionTile;
constexpr std::int64_t kAttentionShareFrom = 1 << 18;  // minimum multiplications for several threads

// The part of a problem that an operand holds.
template <class T>
T* problem_of(const Attention& a, const AttentionOperand& x, std::int64_t problem) {
  std::int64_t offset = 0;
  for (int d = a.batch.dim() - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    offset += problem % a.batch[at] * x.batch[at];
    problem /= a.batch[at];
  }
  return as<T>(x.data) + offset;
}

// Copies rows [first, first + rows), times `factor`, with row stride attention_row(columns); zeros fill the last panel
// of columns.
template <class T>
void copy_rows(const T* x, std::int64_t stride, std::int64_t first, std::int64_t rows, std::int64_t columns, T factor,
               T* to) {
  const std::int64_t covered = panels<T>(columns) * kPanel<T>;
  for (std::int64_t i = 0; i < rows; ++i, to += attention_row(columns)) {
    const T* const from = x + (first + i) * stride;
    for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j] * factor;
    std::fill(to + columns, to + covered, T(0));
  }
}

// Transposes `rows` rows times `factor` into panels, as a right operand; zeros behind the last row.
template <class T>
Right<T> pack_columns(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, T factor, T* to) {
  const Right<T> packed{to, kPanel<T>, columns * kPanel<T>};
  for (std::int64_t i = 0; i < panels<T>(rows) * kPanel<T>; ++i) {
    T* const lane = to + i / kPanel<T> * packed.panel + i % kPanel<T>;
    for (std::int64_t j = 0; j < columns; ++j) lane[j * kPanel<T>] = i < rows ? x[i * stride + j] * factor : T(0);
  }
  return packed;
}

template <class T>
void store_rows(const T* from, std::int64_t rows, std::int64_t columns, T factor, T* to, std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i, from += attention_row(columns), to += stride) {
    for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j] * factor;
  }
}

// The pair of a tile of queries and a tile of keys.
struct Pair {
  std::int64_t problem, query, queries, key, keys;
  bool causal;

  // Query i attends to keys 0 to i + reach() of the tile.
  std::int64_t reach() const { return causal ? query - key : keys; }
  // The first queries, which do not attend to key k of the tile.
  std::int64_t before(std::int64_t k) const { return std::clamp<std::int64_t>(k - reach(), 0, queries); }
  // The same, rounded down to whole panels: lanes whose weights are 0 without being computed.
  template <class T>
  std::int64_t skipped(std::int64_t k) const {
    return before(k) / kPanel<T> * kPanel<T>;
  }
};

// x[i] = e^(x[i] - shift[i]) for whole registers.
template <class T>
void exponentials(T* x, const T* shift, std::int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    for (std::int64_t i = 0; i < count; ++i) x[i] = math::exp(x[i] - shift[i]);
  } else {
    for (std::int64_t i = 0; i < count; i += kPacketSize<T>)
      store_packet<T>(x + i, exp_packet<Packet<T>>(load_packet(x + i) - load_packet(shift + i)));
  }
}

// Adds the mask to the scores; a bool mask counts as 0 and -infinity.
template <class T, class M>
void add_mask(const Attention& a, const Pair& pair, T* scores) {
  const M* const mask =
      problem_of<const M>(a, a.mask, pair.problem) + pair.query * a.mask.row + pair.key * a.mask.column;
  const auto value = [&](std::int64_t query, std::int64_t key) -> T {
    const M m = mask[query * a.mask.row + key * a.mask.column];
    if constexpr (std::is_same_v<M, bool>) return m ? T(0) : -std::numeric_limits<T>::infinity();
    return static_cast<T>(m);
  };
  if (a.mask.row == 0) {  // one row for all queries
    for (std::int64_t k = 0; k < pair.keys; ++k) {
      const T added = value(0, k);
      for (std::int64_t q = 0; q < pair.queries; ++q) scores[k * kSide + q] += added;
    }
    return;
  }
  for (std::int64_t q = 0; q < pair.queries; ++q) {
    for (std::int64_t k = 0; k < pair.keys; ++k) scores[k * kSide + q] += value(q, k);
  }
}

// scores (keys, queries) = k q^T, masked, but for the lanes that are skipped. q is scaled.
template <class T>
void score_pair(const Attention& a, const Pair& pair, const T* keys, const Right<T>& q, T* scores) {
  tile_product<TileProduct::kScores>(pair.keys, pair.queries, a.dim, pair.reach(), Left<T>{keys, attention_row(a.dim)},
                                     q, scores, kSide);
  if (a.mask.data && a.bool_mask) add_mask<T, bool>(a, pair, scores);
  if (a.mask.data && !a.bool_mask) add_mask<T, T>(a, pair, scores);
  for (std::int64_t k = 0; k < pair.keys; ++k) {
    T* const row = scores + k * kSide;
    std::fill(row + pair.skipped<T>(k), row + pair.before(k), -std::numeric_limits<T>::infinity());
  }
}

// factors (keys, queries): 1 / keep for the weights that dropout keeps, 0 for the others.
template <class T>
void draw_factors(const Attention& a, const Pair& pair, T* factors) {
  const T kept = static_cast<T>(a.keep > 0 ? 1 / a.keep : 0);
  const std::int64_t row = (a.time_k + 3) / 4, first = (pair.problem * a.time + pair.query) * row + pair.key / 4;
  for (std::int64_t k = 0; k < pair.keys; k += 4) {
    for (std::int64_t q = 0; q < pair.queries; ++q) {
      const PhiloxBlock block = philox(a.position, static_cast<std::uint64_t>(first + q * row + k / 4));
      for (std::int64_t i = 0; i < 4; ++i)  // rows behind the last key are within the tile
        factors[(k + i) * kSide + q] = static_cast<double>(block.words[i]) * 0x1p-32 < a.keep ? kept : T(0);
    }
  }
}

// Calls body(pair) for the tiles of keys to which a tile of queries attends.
template <class F>
void for_keys(const Attention& a, Pair pair, F body) {
  const std::int64_t end = a.causal ? std::min(a.time_k, pair.query + pair.queries) : a.time_k;
  for (pair.key = 0; pair.key < end; pair.key += kSide) {
    pair.keys = std::min(kSide, end - pair.key);
    body(pair);
  }
}

// Calls body(unit, the share's workspace) for all units. Consecutive units cost about the same, and shares take them in
// turn.
template <class T, class F>
void for_shares(const Attention& a, std::int64_t units, std::int64_t room, F body) {
  const auto share = [&](std::int64_t s) {
    for (std::int64_t unit = s; unit < units; unit += a.shares) body(unit, as<T>(a.workspace) + s * room);
  };
  if (a.shares > 1 && a.count * a.time * a.time_k * (a.dim + a.dim_v) >= kAttentionShareFrom)
    for_chunks(a.shares, share);
  else
    for (std::int64_t s = 0; s < a.shares; ++s) share(s);
}

// Takes consecutive parts of a share's workspace.
template <class T>
class Parts {
 public:
  explicit Parts(T* workspace) : next_(workspace) {}
  T* take(std::int64_t rows, std::int64_t row) { return std::exchange(next_, next_ + rows * row); }

 private:
  T* next_;
};

// The softmax of a tile of queries so far: the largest score and the sum of the exponentials of each query.
template <class T>
struct Online {
  T highest[kSide], sum[kSide];

  Online() {
    std::fill(highest, highest + kSide, -std::numeric_limits<T>::infinity());
    std::fill(sum, sum + kSide, T(0));
  }
  // Turns scores into weights relative to the new largest score; multiplies the sums, and the rows of `out`, by the
  // change of that reference. Without a finite score the reference is 0: -inf - -inf would be NaN.
  void add(const Pair& pair, T* scores, T* out, std::int64_t columns) {
    const std::int64_t lanes = panels<T>(pair.queries) * kPanel<T>;
    T shift[kSide], factor[kSide], total[kSide] = {};
    std::copy(highest, highest + lanes, factor);
    for (std::int64_t k = 0; k < pair.keys; ++k) {
      const T* const row = scores + k * kSide;
      for (std::int64_t q = pair.skipped<T>(k); q < lanes; ++q) highest[q] = row[q] > highest[q] ? row[q] : highest[q];
    }
    for (std::int64_t q = 0; q < lanes; ++q)
      shift[q] = highest[q] == -std::numeric_limits<T>::infinity() ? T(0) : highest[q];
    exponentials(factor, shift, lanes);
    for (std::int64_t k = 0; k < pair.keys; ++k) {
      T* const row = scores + k * kSide;
      const std::int64_t first = pair.skipped<T>(k);
      std::fill(row, row + first, T(0));
      exponentials(row + first, shift + first, lanes - first);
      for (std::int64_t q = first; q < lanes; ++q) total[q] += row[q];
    }
    for (std::int64_t q = 0; q < lanes; ++q) sum[q] = sum[q] * factor[q] + total[q];
    for (std::int64_t q = 0; q < pair.queries; ++q) {
      T* const row = out + q * attention_row(columns);
      for (std::int64_t j = 0; factor[q] != T(1) && j < columns; ++j) row[j] *= factor[q];
    }
  }
};

template <class T>
void attend(const Attention& a, std::int64_t problem, std::int64_t tile, T* room) {
  const Pair queries{problem, tile * kSide, std::min(kSide, a.time - tile * kSide), 0, 0, a.causal};
  const std::int64_t row = attention_row(a.dim), row_v = attention_row(a.dim_v);
  Parts<T> parts(room);
  T *const packed = parts.take(kSide, a.dim), *const keys = parts.take(kSide, row),
           *const scores = parts.take(kSide, kSide), *const values = parts.take(kSide, row_v),
           *const out = parts.take(kSide, row_v), *const factors = parts.take(kSide, kSide);
  const Right<T> q = pack_columns(problem_of<const T>(a, a.q, problem) + queries.query * a.q.row, a.q.row,
                                  queries.queries, a.dim, static_cast<T>(a.scale), packed);
  std::fill(out, out + queries.queries * row_v, T(0));
  Online<T> online;
  for_keys(a, queries, [&](const Pair& pair) {
    copy_rows(problem_of<const T>(a, a.k, problem), a.k.row, pair.key, pair.keys, a.dim, T(1), keys);
    score_pair(a, pair, keys, q, scores);
    online.add(pair, scores, out, a.dim_v);
    if (a.keep < 1) {
      draw_factors(a, pair, factors);
      for (std::int64_t i = 0; i < pair.keys * kSide; ++i) scores[i] *= factors[i];
    }
    copy_rows(problem_of<const T>(a, a.v, problem), a.v.row, pair.key, pair.keys, a.dim_v, T(1), values);
    tile_product<TileProduct::kQueries>(pair.queries, a.dim_v, pair.keys, pair.reach(), Left<T>{scores, kSide},
                                        Right<T>{values, row_v, kPanel<T>}, out, row_v);
  });
  T* const to = problem_of<T>(a, a.out, problem) + queries.query * a.out.row;
  T* const log_sums = as<T>(a.log_sums) + problem * a.time + queries.query;
  for (std::int64_t i = 0; i < queries.queries; ++i) {
    const T sum = online.sum[i];
    const bool masked = sum == T(0);
    store_rows(out + i * row_v, 1, a.dim_v, masked ? T(0) : T(1) / sum, to + i * a.out.row, 0);
    log_sums[i] = masked ? std::numeric_limits<T>::infinity() : online.highest[i] + std::log(sum);
  }
}

// The workspace of backward for one problem, and the gradients of its keys and values so far.
template <class T>
struct Backward {
  Backward(const Attention& a, std::int64_t problem, T* room)
      : a(a), problem(problem), row(attention_row(a.dim)), row_v(attention_row(a.dim_v)) {
    Parts<T> parts(room);
    packed_q = parts.take(kSide, a.dim), packed_grad = parts.take(kSide, a.dim_v);
    q = parts.take(kSide, row), grad = parts.take(kSide, row_v), grad_q = parts.take(kSide, row);
    keys = parts.take(kSide, row), values = parts.take(kSide, row_v);
    weights = parts.take(kSide, kSide), grad_scores = parts.take(kSide, kSide), factors = parts.take(kSide, kSide);
    grad_k = parts.take(a.time_k, row), grad_v = parts.take(a.time_k, row_v);
    std::fill(grad_k, grad_k + a.time_k * row, T(0));
    std::fill(grad_v, grad_v + a.time_k * row_v, T(0));
  }

  // Adds what a tile of queries contributes to all gradients. With weights P, dP = grad v^T (times the dropout factors)
  // and delta = row sums of P * dP = row sums of grad * out, the gradient of the scores is P * (dP - delta).
  void add_queries(const Pair& tile) {
    const AttentionOperand& of_q = a.q;
    copy_rows(problem_of<const T>(a, of_q, problem), of_q.row, tile.query, tile.queries, a.dim, static_cast<T>(a.scale),
              q);
    copy_rows(problem_of<const T>(a, a.grad, problem), a.grad.row, tile.query, tile.queries, a.dim_v, T(1), grad);
    const Right<T> by_q = pack_columns(q, row, tile.queries, a.dim, T(1), packed_q),
                   by_grad = pack_columns(grad, row_v, tile.queries, a.dim_v, T(1), packed_grad);
    T shift[kSide] = {}, delta[kSide] = {};
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      shift[i] = as<T>(a.log_sums)[problem * a.time + tile.query + i];
      delta[i] = dot(grad + i * row_v, problem_of<const T>(a, a.out, problem) + (tile.query + i) * a.out.row);
    }
    std::fill(grad_q, grad_q + tile.queries * row, T(0));
    for_keys(a, tile, [&](const Pair& pair) { add_pair(pair, by_q, by_grad, shift, delta); });
    if (a.grad_q.data)
      store_rows(grad_q, tile.queries, a.dim, static_cast<T>(a.scale),
                 problem_of<T>(a, a.grad_q, problem) + tile.query * a.grad_q.row, a.grad_q.row);
  }

  void store() const {
    if (a.grad_k.data) store_rows(grad_k, a.time_k, a.dim, T(1), problem_of<T>(a, a.grad_k, problem), a.grad_k.row);
    if (a.grad_v.data) store_rows(grad_v, a.time_k, a.dim_v, T(1), problem_of<T>(a, a.grad_v, problem), a.grad_v.row);
  }

 private:
  T dot(const T* x, const T* y) const {
    Packet<T> sums = Packet<T>::Zero();
    for (std::int64_t j = 0; j < a.dim_v; j += kPacketSize<T>)
      sums += load_packet(x + j) * load_part(y + j, a.dim_v - j, T(0));
    return add_lanes<T>(sums);
  }

  void add_pair(const Pair& pair, const Right<T>& by_q, const Right<T>& by_grad, const T* shift, const T* delta) {
    const std::int64_t lanes = panels<T>(pair.queries) * kPanel<T>;
    copy_rows(problem_of<const T>(a, a.k, problem), a.k.row, pair.key, pair.keys, a.dim, T(1), keys);
    copy_rows(problem_of<const T>(a, a.v, problem), a.v.row, pair.key, pair.keys, a.dim_v, T(1), values);
    score_pair(a, pair, keys, by_q, weights);
    tile_product<TileProduct::kScores>(pair.keys, pair.queries, a.dim_v, pair.reach(), Left<T>{values, row_v}, by_grad,
                                       grad_scores, kSide);
    if (a.keep < 1) draw_factors(a, pair, factors);
    for (std::int64_t k = 0; k < pair.keys; ++k) {
      T *const w = weights + k * kSide, *const grad_row = grad_scores + k * kSide, *const factor = factors + k * kSide;
      const std::int64_t first = pair.skipped<T>(k);
      std::fill(w, w + first, T(0)), std::fill(grad_row, grad_row + first, T(0));
      exponentials(w + first, shift + first, lanes - first);
      if (a.keep < 1) {
        for (std::int64_t i = first; i < lanes; ++i) grad_row[i] *= factor[i];
        for (std::int64_t i = 0; i < lanes; ++i) factor[i] *= w[i];
      }
      for (std::int64_t i = first; i < lanes; ++i) grad_row[i] = w[i] * (grad_row[i] - delta[i]);
    }
    const Left<T> grad_scores_of_keys{grad_scores, kSide}, weights_of_keys{a.keep < 1 ? factors : weights, kSide};
    if (a.grad_v.data)
      tile_product<TileProduct::kKeys>(pair.keys, a.dim_v, pair.queries, pair.reach(), weights_of_keys,
                                       Right<T>{grad, row_v, kPanel<T>}, grad_v + pair.key * row_v, row_v);
    if (a.grad_k.data)
      tile_product<TileProduct::kKeys>(pair.keys, a.dim, pair.queries, pair.reach(), grad_scores_of_keys,
                                       Right<T>{q, row, kPanel<T>}, grad_k + pair.key * row, row);
    if (a.grad_q.data)
      tile_product<TileProduct::kQueries>(pair.queries, a.dim, pair.keys, pair.reach(), grad_scores_of_keys,
                                          Right<T>{keys, row, kPanel<T>}, grad_q, row);
  }

  const Attention& a;
  std::int64_t problem, row, row_v;
  T *packed_q, *packed_grad, *q, *grad, *grad_q, *keys, *values, *weights, *grad_scores, *factors, *grad_k, *grad_v;
};

}  // namespace

void attention(const Attention& a, DType dtype) {
  const std::int64_t tiles = (a.time + kSide - 1) / kSide;
  for_float(dtype, [&]<class T>(T) {
    for_shares<T>(a, a.count * tiles, raw::attention_room(a, false),
                  [&](std::int64_t unit, T* room) { attend(a, unit % a.count, unit / a.count, room); });
  });
}

void attention_backward(const Attention& a, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    for_shares<T>(a, a.count, raw::attention_room(a, true), [&](std::int64_t problem, T* room) {
      Backward<T> backward(a, problem, room);
      for (std::int64_t query = 0; query < a.time; query += kSide)
        backward.add_queries({problem, query, std::min(kSide, a.time - query), 0, 0, a.causal});
      backward.store();
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
