// Attention by tiles (Dao et al., "FlashAttention", 2022): no (time, time) matrix is stored.
//
// A block of threads computes the result of one tile of queries, or the gradients of one tile of queries or of keys, in
// the order of the other dimension's tiles. No block adds to the result of another, so the bits depend on the shape
// alone. The price is that backward computes the scores twice.
#include "lockstep/tensor/cuda/attention_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// Tiles of rows, and groups of columns, each for one block of threads.
struct Blocks {
  Divisor tiles, groups;
  bool backwards;  // the last tiles first: under a causal mask they are those with the most work

  struct Place {
    std::int64_t problem, tile, group;
  };
  DEVICE_ONLY Place place(std::int64_t block) const {
    const Quotient row = groups.divide(block), tile = tiles.divide(row.whole);
    return {tile.whole, backwards ? tiles.size() - 1 - tile.rest : tile.rest, row.rest};
  }
};

// Parts of the kernels. Each thread has a square of the scores of a tile of queries and a tile of keys.
template <class T>
struct AttentionTiles {
  using W = Wide<T>;
  using Matrix = Tile<W>;
  using Square = typename Matrix::Square;
  static constexpr int kEach = Matrix::kEach, kSide = Matrix::kSide;
  static constexpr W kInfinity = std::numeric_limits<W>::infinity();

  AttentionOf<T> a;
  Blocks blocks;

  // The tile of a queries and keys of a problem.
  struct Pair {
    std::int64_t problem, query, key;
  };
  struct Column {  // of one thread's square: a value for each query
    W at[kEach];
  };
  template <int kCount>
  struct Squares {
    Square each[kCount];
  };

  template <int kCount>
  DEVICE_ONLY static void clear(const Block& block, PerThread<Squares<kCount>>& sums) {
    block.each_alone([&](int thread) { sums[thread] = {}; });
  }

  // scores = x y^T, where x is multiplied by `factor`. Leaves the last columns in the tiles.
  DEVICE_ONLY static void multiply_rows(const Block& block, const Matrix& left, const Matrix& right,
                                        const MatrixRows<T>& x, const MatrixRows<T>& y, W factor,
                                        PerThread<Square>& scores) {
    block.each_alone([&](int thread) { scores[thread] = {}; });
    for (std::int64_t column = 0; column < x.columns; column += kSide) {
      block.each([&](int thread) {
        left.load(thread, x.from_column(column), factor);
        right.load(thread, y.from_column(column), W(1));
      });
      block.each([&](int thread) { Matrix::add_by_rows(thread, left, right, scores[thread]); });
    }
  }

  // sums += left y, for kCount tiles of the columns of y, which is multiplied by `factor`. `right` holds the first of
  // them if `loaded`.
  template <int kCount>
  DEVICE_ONLY static void add_product(const Block& block, const Matrix& left, const Matrix& right,
                                      const MatrixRows<T>& y, W factor, bool loaded, PerThread<Squares<kCount>>& sums) {
    UNROLL_ALL
    for (int n = 0; n < kCount; ++n) {
      if (n * kSide >= y.columns) break;
      if (n > 0 || !loaded) block.each([&](int thread) { right.load(thread, y.from_column(n * kSide), factor); });
      block.each([&](int thread) { Matrix::add_by_columns(thread, left, right, sums[thread].each[n]); });
    }
  }

  // Adds the mask to the scores; where a query does not attend, the score is -infinity.
  DEVICE_ONLY void mask_scores(int thread, const Pair& pair, const AttentionMask<T>& mask, Square& scores) const {
    thread = recomputed(thread);
    const std::int64_t query = pair.query + Matrix::row_of(thread), key = pair.key + Matrix::column_of(thread);
    UNROLL_ALL
    for (int i = 0; i < kEach; ++i) {
      const int reach = a.reach(query + i, key, kEach);
      UNROLL_ALL
      for (int j = 0; j < kEach; ++j) {
        if (j >= reach)
          scores.at[i][j] = -kInfinity;
        else if (mask.is_present())
          scores.at[i][j] += mask(query + i, key + j);
      }
    }
  }

  // Stores the dropout factors of this thread's square in `tile`: one row after the other, so that few registers hold
  // Philox's numbers.
  DEVICE_ONLY void store_factors(int thread, const Pair& pair, const Matrix& tile) const {
    const random::Position position = a.position.on_device ? *a.position.on_device : a.position;
    const std::int64_t query = pair.query + Matrix::row_of(thread), key = pair.key + Matrix::column_of(thread);
    ONE_BY_ONE
    for (int i = 0; i < kEach; ++i) {
      dropout_factors<kEach>(a, position, pair.problem, query + i, key,
                             tile.vector(Matrix::row_of(thread) + i, thread % Matrix::kThreadRows).values);
    }
  }

  DEVICE_ONLY MatrixRows<T> queries(const AttentionRows<T>& x, std::int64_t problem, std::int64_t columns) const {
    return a.rows(x, problem, a.time, columns);
  }
  DEVICE_ONLY MatrixRows<T> keys(const AttentionRows<T>& x, std::int64_t problem, std::int64_t columns) const {
    return a.rows(x, problem, a.time_k, columns);
  }

  // Stores this thread's squares times factor(i) into the rows from `first` of a problem, from column `column` on.
  template <int kCount, class Factor>
  DEVICE_ONLY void store(int thread, const Squares<kCount>& x, const AttentionRows<T>& to, std::int64_t problem,
                         std::int64_t first, std::int64_t end, std::int64_t column, std::int64_t columns,
                         Factor factor) const {
    T* const data = to.data + a.origin(to, problem);
    UNROLL_ALL
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t row = first + Matrix::row_of(thread) + i;
      if (row >= end) continue;
      UNROLL_ALL
      for (int n = 0; n < kCount; ++n) {
        UNROLL_ALL
        for (int j = 0; j < kEach; ++j) {
          const std::int64_t at = column + n * kSide + Matrix::column_of(thread) + j;
          if (at < columns) data[row * to.row + at] = narrow<T>(x.each[n].at[i][j] * factor(i));
        }
      }
    }
  }
};

// The softmax of this thread's queries so far: the largest score, and this thread's part of the exponentials' sum.
template <class T>
struct OnlineSoftmax {
  using W = Wide<T>;
  static constexpr int kEach = Tile<W>::kEach;
  W highest[kEach], sum[kEach];

  // Turns scores into weights relative to the new largest score, and multiplies earlier sums by the change of that
  // reference. Without a finite score the reference is 0: -inf - -inf would be NaN.
  template <int kCount>
  DEVICE_ONLY void add(const W* largest, typename Tile<W>::Square& scores,
                       typename AttentionTiles<T>::template Squares<kCount>& out) {
    UNROLL_ALL
    for (int i = 0; i < kEach; ++i) {
      const W before = highest[i], now = largest[i] > before ? largest[i] : before;
      const W shift = now == -std::numeric_limits<W>::infinity() ? W(0) : now, factor = math::exp(before - shift);
      highest[i] = now;
      sum[i] *= factor;
      UNROLL_ALL
      for (int j = 0; j < kEach; ++j) sum[i] += scores.at[i][j] = math::exp(scores.at[i][j] - shift);
      UNROLL_ALL
      for (int n = 0; n < kCount; ++n) {
        UNROLL_ALL
        for (int j = 0; j < kEach; ++j) out.each[n].at[i][j] *= factor;
      }
    }
  }
};

// kCount tiles of columns of the result for one tile of queries.
template <class T, int kCount>
struct AttentionForward : AttentionTiles<T> {
  using Base = AttentionTiles<T>;
  using typename Base::Column, typename Base::Matrix, typename Base::Pair, typename Base::Square, typename Base::W;
  using Squares = typename Base::template Squares<kCount>;
  using Base::a, Base::kEach, Base::kSide, Base::kInfinity;
  static constexpr int kResident = kCount == 1 ? 2 : 1;

  DEVICE_ONLY void operator()(const Block& block) const {
    BLOCK_SHARED typename Matrix::Vector memory[3][Matrix::kVectors];
    const Matrix left(memory[0]), right(memory[1]), values(memory[2]);
    const Blocks::Place place = this->blocks.place(block.index());
    const std::int64_t column = place.group * kCount * kSide;
    Pair pair{place.problem, place.tile * kSide, 0};
    PerThread<Squares> out;
    PerThread<OnlineSoftmax<T>> online;
    Base::clear(block, out);
    block.each_alone([&](int thread) {
      for (int i = 0; i < kEach; ++i) online[thread].highest[i] = -kInfinity, online[thread].sum[i] = 0;
    });
    const AttentionMask<T> mask(a, pair.problem);
    const MatrixRows<T> q = this->queries(a.q, pair.problem, a.dim).from_row(pair.query),
                        k = this->keys(a.k, pair.problem, a.dim),
                        v = this->keys(a.v, pair.problem, a.dim_v).from_column(column);
    const std::int64_t end = a.keys_of(pair.query + kSide);
    for (; pair.key < end; pair.key += kSide) {
      PerThread<Square> scores;
      Base::multiply_rows(block, left, right, q, k.from_row(pair.key), static_cast<W>(a.scale), scores);
      add_weights(block, pair, mask, right, scores, online, out);
      Base::add_product(block, right, values, v.from_row(pair.key), W(1), false, out);
    }
    finish(block, pair, column, online, out);
  }

 private:
  // Stores the weights of a pair of tiles in `tile`.
  DEVICE_ONLY void add_weights(const Block& block, const Pair& pair, const AttentionMask<T>& mask, const Matrix& tile,
                               PerThread<Square>& scores, PerThread<OnlineSoftmax<T>>& online,
                               PerThread<Squares>& out) const {
    PerThread<Column> largest;
    block.each_alone([&](int thread) {
      Square& x = scores[thread];
      this->mask_scores(thread, pair, mask, x);
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) {  // may ignore a NaN, which makes the sum NaN anyway
        W& most = largest[thread].at[i] = -kInfinity;
        UNROLL_ALL
        for (int j = 0; j < kEach; ++j) most = x.at[i][j] > most ? x.at[i][j] : most;
      }
    });
    block.template reduce_groups<Matrix::kThreadRows>(largest, [](Column x, const Column& y) {
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) x.at[i] = y.at[i] > x.at[i] ? y.at[i] : x.at[i];
      return x;
    });
    block.each([&](int thread) {
      Square& x = scores[thread];
      online[thread].template add<kCount>(largest[thread].at, x, out[thread]);
      if (a.keep < 1) {
        this->store_factors(thread, pair, tile);
        tile.multiply(thread, x);
      }
      tile.store(thread, x);
    });
  }

  DEVICE_ONLY void finish(const Block& block, const Pair& pair, std::int64_t column,
                          PerThread<OnlineSoftmax<T>>& online, PerThread<Squares>& out) const {
    PerThread<Column> sums;
    block.each_alone([&](int thread) {
      for (int i = 0; i < kEach; ++i) sums[thread].at[i] = online[thread].sum[i];
    });
    block.template reduce_groups<Matrix::kThreadRows>(sums, [](Column x, const Column& y) {
      UNROLL_ALL
      for (int i = 0; i < kEach; ++i) x.at[i] += y.at[i];
      return x;
    });
    block.each_alone([&](int thread) {
      const Column& sum = sums[thread];
      this->store(thread, out[thread], a.out, pair.problem, pair.query, a.time, column, a.dim_v,
                  [&](int i) { return sum.at[i] == W(0) ? W(0) : W(1) / sum.at[i]; });
      if (column > 0 || Matrix::column_of(thread) > 0) return;
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t query = pair.query + Matrix::row_of(thread) + i;
        if (query >= a.time) return;
        a.log_sums[pair.problem * a.time + query] =
            sum.at[i] == W(0) ? kInfinity : online[thread].highest[i] + math::log(sum.at[i]);
      }
    });
  }
};

// Parts of both kernels of backward. With weights P, dP = grad v^T (times the dropout factors) and the products
// D = row sums of P * dP = row sums of grad * out, the gradient of the scores is P * (dP - D).
template <class T>
struct AttentionBackward : AttentionTiles<T> {
  using Base = AttentionTiles<T>;
  using Base::a, Base::kEach, Base::kInfinity;
  using typename Base::Matrix, typename Base::Pair, typename Base::Square, typename Base::W;

  // Turns scores into weights (times dropout factors), and dP into the gradients of the scores. Changes `tile`.
  DEVICE_ONLY void differentiate(int thread, const Pair& pair, const AttentionMask<T>& mask, const Matrix& tile,
                                 Square& scores, Square& grads) const {
    if (a.keep < 1) {
      this->store_factors(thread, pair, tile);
      tile.multiply(thread, grads);
    }
    this->mask_scores(thread, pair, mask, scores);
    thread = recomputed(thread);
    UNROLL_ALL
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t query = pair.query + Matrix::row_of(thread) + i, row = pair.problem * a.time + query;
      const W shift = query < a.time ? a.log_sums[row] : kInfinity, product = query < a.time ? a.products[row] : W(0);
      const int reach = a.reach(query, pair.key + Matrix::column_of(thread), kEach);
      UNROLL_ALL
      for (int j = 0; j < kEach; ++j) {
        scores.at[i][j] = j < reach ? math::exp(scores.at[i][j] - shift) : W(0);
        grads.at[i][j] = j < reach ? scores.at[i][j] * (grads.at[i][j] - product) : W(0);
      }
    }
    if (a.keep < 1) tile.multiply(thread, scores);
  }
};

// kCount tiles of columns of grad_k and grad_v for one tile of keys.
template <class T, int kCount>
struct AttentionBackwardKeys : AttentionBackward<T> {
  using Base = AttentionTiles<T>;
  using typename Base::Matrix, typename Base::Pair, typename Base::Square, typename Base::W;
  using Squares = typename Base::template Squares<kCount>;
  using Base::a, Base::kSide;
  static constexpr int kResident = kCount == 1 ? 2 : 1;

  DEVICE_ONLY void operator()(const Block& block) const {
    BLOCK_SHARED typename Matrix::Vector memory[3][Matrix::kVectors];
    const Matrix of_q(memory[0]), other(memory[1]), of_grad(memory[2]);
    const Blocks::Place place = this->blocks.place(block.index());
    const std::int64_t column = place.group * kCount * kSide;
    Pair pair{place.problem, 0, place.tile * kSide};
    PerThread<Squares> grad_k, grad_v;
    Base::clear(block, grad_k), Base::clear(block, grad_v);
    const AttentionMask<T> mask(a, pair.problem);
    const W scale = static_cast<W>(a.scale);
    const MatrixRows<T> all_q = this->queries(a.q, pair.problem, a.dim),
                        all_grad = this->queries(a.grad, pair.problem, a.dim_v),
                        k = this->keys(a.k, pair.problem, a.dim).from_row(pair.key),
                        v = this->keys(a.v, pair.problem, a.dim_v).from_row(pair.key);
    for (pair.query = a.first_query_of(pair.key); pair.query < a.time; pair.query += kSide) {
      const MatrixRows<T> q = all_q.from_row(pair.query), grad = all_grad.from_row(pair.query);
      PerThread<Square> weights, grad_scores;
      Base::multiply_rows(block, of_q, other, q, k, scale, weights);
      Base::multiply_rows(block, of_grad, other, grad, v, W(1), grad_scores);
      block.each(
          [&](int thread) { this->differentiate(thread, pair, mask, other, weights[thread], grad_scores[thread]); });
      block.each([&](int thread) { other.store_transposed(thread, weights[thread]); });
      if (a.grad_v.data)
        Base::add_product(block, other, of_grad, grad.from_column(column), W(1), a.dim_v <= kSide, grad_v);
      if (!a.grad_k.data) continue;
      block.each([&](int thread) { other.store_transposed(thread, grad_scores[thread]); });
      Base::add_product(block, other, of_q, q.from_column(column), scale, a.dim <= kSide, grad_k);
    }
    block.each_alone([&](int thread) {
      const auto one = [](int) { return W(1); };
      if (a.grad_k.data)
        this->store(thread, grad_k[thread], a.grad_k, pair.problem, pair.key, a.time_k, column, a.dim, one);
      if (a.grad_v.data)
        this->store(thread, grad_v[thread], a.grad_v, pair.problem, pair.key, a.time_k, column, a.dim_v, one);
    });
  }
};

// kCount tiles of columns of grad_q for one tile of queries.
template <class T, int kCount>
struct AttentionBackwardQueries : AttentionBackward<T> {
  using Base = AttentionTiles<T>;
  using typename Base::Matrix, typename Base::Pair, typename Base::Square, typename Base::W;
  using Squares = typename Base::template Squares<kCount>;
  using Base::a, Base::kSide;
  static constexpr int kResident = kCount == 1 ? 2 : 1;

  DEVICE_ONLY void operator()(const Block& block) const {
    BLOCK_SHARED typename Matrix::Vector memory[3][Matrix::kVectors];
    const Matrix of_queries(memory[0]), other(memory[1]), of_k(memory[2]);
    const Blocks::Place place = this->blocks.place(block.index());
    const std::int64_t column = place.group * kCount * kSide;
    Pair pair{place.problem, place.tile * kSide, 0};
    PerThread<Squares> grad_q;
    Base::clear(block, grad_q);
    const AttentionMask<T> mask(a, pair.problem);
    const W scale = static_cast<W>(a.scale);
    const MatrixRows<T> q = this->queries(a.q, pair.problem, a.dim).from_row(pair.query),
                        grad = this->queries(a.grad, pair.problem, a.dim_v).from_row(pair.query),
                        all_k = this->keys(a.k, pair.problem, a.dim), all_v = this->keys(a.v, pair.problem, a.dim_v);
    const std::int64_t end = a.keys_of(pair.query + kSide);
    for (; pair.key < end; pair.key += kSide) {
      const MatrixRows<T> k = all_k.from_row(pair.key);
      PerThread<Square> weights, grad_scores;
      Base::multiply_rows(block, of_queries, of_k, q, k, scale, weights);
      Base::multiply_rows(block, of_queries, other, grad, all_v.from_row(pair.key), W(1), grad_scores);
      block.each([&](int thread) {
        this->differentiate(thread, pair, mask, other, weights[thread], grad_scores[thread]);
        other.store(thread, grad_scores[thread]);
      });
      Base::add_product(block, other, of_k, k.from_column(column), W(1), a.dim <= kSide, grad_q);
    }
    block.each_alone([&](int thread) {
      this->store(thread, grad_q[thread], a.grad_q, pair.problem, pair.query, a.time, column, a.dim,
                  [=](int) { return scale; });
    });
  }
};

// Launches Kernel<T, 1 or 2> for all rows and columns of a result.
template <template <class, int> class Kernel, class T>
void launch_tiles(const char* op, const AttentionOf<T>& a, std::int64_t rows, std::int64_t columns, bool backwards) {
  constexpr std::int64_t kSide = Tile<Wide<T>>::kSide;
  const auto launch = [&]<int kCount>(std::integral_constant<int, kCount>) {
    const std::int64_t tiles = (rows + kSide - 1) / kSide, groups = (columns + kCount * kSide - 1) / (kCount * kSide);
    launch_blocks(op, a.count * tiles * groups, Kernel<T, kCount>{{a, {Divisor(tiles), Divisor(groups), backwards}}});
  };
  if (columns <= kSide) return launch(std::integral_constant<int, 1>());
  launch(std::integral_constant<int, 2>());
}

}  // namespace

void attention(const raw::Attention& attention, DType dtype) {
  if (attention_by_mma(attention, dtype)) return;
  for_floating(dtype, [&]<class T>(T) {
    launch_tiles<AttentionForward>("attention", AttentionOf<T>(attention), attention.time, attention.dim_v,
                                   attention.causal);
  });
}

void attention_backward(const raw::Attention& attention, DType dtype) {
  for_floating(dtype, [&]<class T>(T) {
    AttentionOf<T> a(attention);
    constexpr std::int64_t kQueries = AttentionProducts<T>::kQueries;
    const std::int64_t blocks = (a.time + kQueries - 1) / kQueries;
    const Scratch products(a.count * a.time * static_cast<std::int64_t>(sizeof(Wide<T>)));
    a.products = products.as<Wide<T>>();
    launch_blocks("attention backward", a.count * blocks, AttentionProducts<T>{a, Divisor(blocks)});
    if ((a.grad_k.data || a.grad_v.data) && !attention_backward_keys_by_mma(attention, dtype, products.as<float>()))
      launch_tiles<AttentionBackwardKeys>("attention backward", a, a.time_k, a.dim > a.dim_v ? a.dim : a.dim_v, false);
    if (a.grad_q.data && !attention_backward_queries_by_mma(attention, dtype, products.as<float>()))
      launch_tiles<AttentionBackwardQueries>("attention backward", a, a.time, a.dim, a.causal);
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
