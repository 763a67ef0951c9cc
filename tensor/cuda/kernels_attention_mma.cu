// Attention of f16 and bf16 by tensor cores: the tiles of kernels_attention.cu for the operands of a transformer.
//
// A warp of a block has 16 rows: queries, or keys in the backward pass of keys and values. All warps read the tiles of
// the other dimension, one after the other, from shared memory; the next tile is copied meanwhile. Scores stay in
// registers, where the sums of one product are the left operand of the next one. Weights and the gradients of scores
// are rounded to 16 bits for these products, as everywhere in this technique; all sums are f32.
#include "lockstep/tensor/cuda/attention_internal.h"
#include "lockstep/tensor/cuda/mma_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

constexpr int kBlockRows = kThreads / kWarp * 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736F;

// Parts of the kernels for heads of kDim elements.
template <class T, int kDim>
struct WarpTiles {
  static constexpr int kTile = kDim > 64 ? 32 : 64;  // rows of a tile in shared memory
  static constexpr int kSteps = kDim / 16, kColumns = kDim / 8;
  using Matrix = PackedTile<T, kTile, kDim>;
  struct Rows {  // this thread's part of the warp's rows, as left operands
    LeftPart steps[kSteps];
  };
  struct Result {  // and of sums for the warp's rows and all columns
    SumsPart columns[kColumns];
  };
  template <int kCount>
  struct Scores {  // and of scores for 8 kCount rows of a tile
    SumsPart tiles[kCount];
  };

  AttentionOf<T> a;
  Divisor blocks;  // of a problem

  DEVICE_ONLY std::int64_t problem_of(const Block& block) const { return blocks.divide(block.index()).whole; }
  // The first row of a block. Under a causal mask the last queries have the most work, so they start first.
  DEVICE_ONLY int last_rows_first(const Block& block) const {
    return static_cast<int>(blocks.size() - 1 - blocks.divide(block.index()).rest) * kBlockRows;
  }
  // As in AttentionOf, in numbers of 32 bits.
  DEVICE_ONLY int keys_of(int end) const {
    const int keys = static_cast<int>(a.time_k);
    return a.causal && end < keys ? end : keys;
  }
  // The number of keys from `key` to which a query attends; may be negative, or beyond a tile.
  DEVICE_ONLY int reach(int query, int key) const { return keys_of(query + 1) - key; }

  DEVICE_ONLY static void load(const Block& block, const MatrixRows<T>& from, PerThread<Rows>& to) {
    block.each_alone([&](int thread) { load_left<T, kSteps>(thread, from, to[thread].steps); });
  }
  DEVICE_ONLY static void clear(const Block& block, PerThread<Result>& sums) {
    block.each_alone([&](int thread) { sums[thread] = {}; });
  }

  // Calls step(first, x, y) for tiles [first, first + kTile) of the rows of two matrices from `begin` to `end`, a
  // multiple of the tile apart; `load_more(thread, first, stage)` runs with the copies of a tile.
  template <class LoadMore, class Step>
  DEVICE_ONLY static void for_tiles(const Block& block, const MatrixRows<T>& x, const MatrixRows<T>& y, int begin,
                                    int end, LoadMore load_more, Step step) {
    BLOCK_SHARED typename Matrix::Vector memory[2][2][Matrix::kVectors];
    const auto start = [&](int thread, int first, int stage) {
      Matrix(memory[stage][0]).start_load(thread, x.from_row(first));
      Matrix(memory[stage][1]).start_load(thread, y.from_row(first));
      load_more(thread, first, stage);
      end_copies();
    };
    if (begin < end) block.each_alone([&](int thread) { start(thread, begin, 0); });
    int stage = 0;
    for (int first = begin; first < end; first += kTile, stage ^= 1) {
      const bool has_next = first + kTile < end;
      block.each([&](int thread) {
        if (!has_next) return wait_for_copies<0>();
        start(thread, first + kTile, stage ^ 1);
        wait_for_copies<1>();
      });
      step(first, Matrix(memory[stage][0]), Matrix(memory[stage][1]), stage);
      block.each([](int) {});  // the next copies overwrite this tile
    }
  }

  // scores = rows r^T for 8 kCount rows r of a tile.
  template <int kCount>
  DEVICE_ONLY static void multiply(const Block& block, PerThread<Rows>& rows, const Matrix& tile, int first,
                                   PerThread<Scores<kCount>>& scores) {
    block.each_alone([&](int thread) { scores[thread] = {}; });
    tile.template add_by_rows<kCount>(
        block, [&](int t) -> const LeftPart* { return rows[t].steps; }, first,
        [&](int t) -> SumsPart* { return scores[t].tiles; });
  }
  // result += scores r for the same rows.
  template <int kCount>
  DEVICE_ONLY static void add_product(const Block& block, PerThread<Scores<kCount>>& scores, const Matrix& tile,
                                      int first, PerThread<Result>& result) {
    struct Weights {
      LeftPart steps[kCount / 2];
    };
    PerThread<Weights> weights;
    block.each_alone([&](int thread) { as_left<T, kCount / 2>(scores[thread].tiles, weights[thread].steps); });
    tile.template add_by_columns<kCount / 2>(
        block, [&](int t) -> const LeftPart* { return weights[t].steps; }, first,
        [&](int t) -> SumsPart* { return result[t].columns; });
  }

  // The first of this thread's two rows of a block; the second one is 8 further.
  DEVICE_ONLY static int row_of(int thread) { return thread / kWarp * 16 + sums_row(thread, 0); }

  // Stores two rows times a factor each, from row `first` of a problem on.
  DEVICE_ONLY void store(int thread, const Result& x, const AttentionRows<T>& to, std::int64_t problem, int first,
                         int end, const float* factors) const {
    thread = recomputed(thread);
    T* const data = to.data + a.origin(to, problem);
    UNROLL_ALL
    for (int half = 0; half < 2; ++half) {
      const int row = first + row_of(thread) + half * 8;
      if (row >= end) continue;
      UNROLL_ALL
      for (int n = 0; n < kColumns; ++n) {
        const float* const pair = x.columns[n].at + half * 2;
        *reinterpret_cast<std::uint32_t*>(data + std::int64_t{row} * to.row + n * 8 + sums_column(thread, 0)) =
            packed<T>(pair[0] * factors[half], pair[1] * factors[half]);
      }
    }
  }
};

constexpr auto kNoMore = [](int, int, int) {};

template <class T, int kDim>
struct MmaForward : WarpTiles<T, kDim> {
  using Base = WarpTiles<T, kDim>;
  using Base::a, Base::kTile;
  using typename Base::Matrix, typename Base::Result, typename Base::Rows;
  static constexpr int kResident = kDim > 64 ? 1 : 2, kCount = 4;  // fits into the registers
  using Scores = typename Base::template Scores<kCount>;

  // The largest score of each of a thread's two rows, and its part of the exponentials' sums.
  struct Online {
    float highest[2], sum[2];
  };

  DEVICE_ONLY void operator()(const Block& block) const {
    const std::int64_t problem = this->problem_of(block);
    const int first_query = this->last_rows_first(block);
    PerThread<Rows> q;
    PerThread<Result> out;
    PerThread<Online> online;
    Base::load(block, a.rows(a.q, problem, a.time, kDim).from_row(first_query), q);
    Base::clear(block, out);
    block.each_alone([&](int thread) { online[thread] = {{-kInfinity, -kInfinity}, {0, 0}}; });
    Base::for_tiles(block, a.rows(a.k, problem, a.time_k, kDim), a.rows(a.v, problem, a.time_k, kDim), 0,
                    this->keys_of(first_query + kBlockRows), kNoMore,
                    [&](int key, const Matrix& k, const Matrix& v, int) {
                      ONE_BY_ONE
                      for (int first = 0; first < kTile; first += 8 * kCount) {
                        PerThread<Scores> scores;
                        Base::template multiply<kCount>(block, q, k, first, scores);
                        add_weights(block, first_query, key + first, scores, online, out);
                        Base::template add_product<kCount>(block, scores, v, first, out);
                      }
                    });
    finish(block, problem, first_query, online, out);
  }

 private:
  // Turns scores into weights relative to the new largest score, as OnlineSoftmax does.
  DEVICE_ONLY void add_weights(const Block& block, int first_query, int key, PerThread<Scores>& scores,
                               PerThread<Online>& online, PerThread<Result>& out) const {
    struct Pair {
      float at[2];
    };
    PerThread<Pair> largest;
    constexpr int kKeys = 8 * kCount;
    const bool all_attend = key + kKeys <= this->keys_of(first_query + 1);
    block.each_alone([&](int thread) {
      thread = recomputed(thread);
      Scores& x = scores[thread];
      Pair& most = largest[thread];
      most = {{-kInfinity, -kInfinity}};
      UNROLL_ALL
      for (int half = 0; half < 2; ++half) {
        const int reach = all_attend ? kKeys : this->reach(first_query + Base::row_of(thread) + half * 8, key);
        UNROLL_ALL
        for (int n = 0; n < kCount; ++n) {
          UNROLL_ALL
          for (int i = 0; i < 2; ++i) {
            float& score = x.tiles[n].at[half * 2 + i];
            if (n * 8 + sums_column(thread, i) >= reach) score = -kInfinity;
            most.at[half] = score > most.at[half] ? score : most.at[half];
          }
        }
      }
    });
    block.template reduce_groups<4>(largest, [](Pair x, const Pair& y) {
      UNROLL_ALL
      for (int i = 0; i < 2; ++i) x.at[i] = y.at[i] > x.at[i] ? y.at[i] : x.at[i];
      return x;
    });
    const float scale = static_cast<float>(a.scale) * kLog2E;  // positive, so it does not change the order of scores
    block.each_alone([&](int thread) {
      Scores& x = scores[thread];
      Online& own = online[thread];
      UNROLL_ALL
      for (int half = 0; half < 2; ++half) {
        const float before = own.highest[half], most = largest[thread].at[half], now = most > before ? most : before;
        const float shift = now == -kInfinity ? 0 : now * scale, factor = fast_exp2(before * scale - shift);
        own.highest[half] = now;
        float sum = 0;
        UNROLL_ALL
        for (int n = 0; n < kCount; ++n) {
          UNROLL_ALL
          for (int i = 0; i < 2; ++i) {
            float& score = x.tiles[n].at[half * 2 + i];
            sum += score = fast_exp2(score * scale - shift);
          }
        }
        own.sum[half] = own.sum[half] * factor + sum;
        if (factor == 1) continue;  // the largest score seldom changes
        UNROLL_ALL
        for (int n = 0; n < Base::kColumns; ++n) {
          UNROLL_ALL
          for (int i = 0; i < 2; ++i) out[thread].columns[n].at[half * 2 + i] *= factor;
        }
      }
    });
  }

  DEVICE_ONLY void finish(const Block& block, std::int64_t problem, int first_query, PerThread<Online>& online,
                          PerThread<Result>& out) const {
    block.template reduce_groups<4>(online, [](Online x, const Online& y) {
      UNROLL_ALL
      for (int i = 0; i < 2; ++i) x.sum[i] += y.sum[i];
      return x;
    });
    block.each_alone([&](int thread) {
      const Online& own = online[thread];
      float factors[2];
      UNROLL_ALL
      for (int half = 0; half < 2; ++half) {
        const float sum = own.sum[half];
        factors[half] = sum == 0 ? 0.F : 1 / sum;
        const int query = first_query + Base::row_of(thread) + half * 8;
        if (thread % 4 == 0 && query < a.time)
          a.log_sums[problem * a.time + query] =
              sum == 0 ? kInfinity : own.highest[half] * static_cast<float>(a.scale) + math::log(sum);
      }
      this->store(thread, out[thread], a.out, problem, first_query, a.time, factors);
    });
  }
};

// grad_q of a block of queries. Names as in kernels_attention.cu.
template <class T, int kDim>
struct MmaBackwardQueries : WarpTiles<T, kDim> {
  using Base = WarpTiles<T, kDim>;
  using Base::a, Base::kTile;
  using typename Base::Matrix, typename Base::Result, typename Base::Rows;
  static constexpr int kResident = kDim > 64 ? 1 : 2, kCount = kDim == 64 ? 2 : 4;  // fits into the registers
  using Scores = typename Base::template Scores<kCount>;

  struct Pair {  // of a thread's two queries: log-sum-exp, as a power of 2, and the product of backward
    float shift[2], product[2];
  };

  DEVICE_ONLY void operator()(const Block& block) const {
    const std::int64_t problem = this->problem_of(block);
    const int first_query = this->last_rows_first(block);
    PerThread<Rows> q, grad;
    PerThread<Result> grad_q;
    PerThread<Pair> of_queries;
    Base::load(block, a.rows(a.q, problem, a.time, kDim).from_row(first_query), q);
    Base::load(block, a.rows(a.grad, problem, a.time, kDim).from_row(first_query), grad);
    Base::clear(block, grad_q);
    block.each_alone([&](int thread) {
      thread = recomputed(thread);
      for (int half = 0; half < 2; ++half) {
        const int query = first_query + Base::row_of(thread) + half * 8;
        const std::int64_t row = problem * a.time + query;
        of_queries[thread].shift[half] = query < a.time ? a.log_sums[row] * kLog2E : kInfinity;
        of_queries[thread].product[half] = query < a.time ? a.products[row] : 0;
      }
    });
    Base::for_tiles(block, a.rows(a.k, problem, a.time_k, kDim), a.rows(a.v, problem, a.time_k, kDim), 0,
                    this->keys_of(first_query + kBlockRows), kNoMore,
                    [&](int key, const Matrix& k, const Matrix& v, int) {
                      ONE_BY_ONE
                      for (int first = 0; first < kTile; first += 8 * kCount) {
                        PerThread<Scores> scores, grads;
                        Base::template multiply<kCount>(block, q, k, first, scores);
                        Base::template multiply<kCount>(block, grad, v, first, grads);
                        differentiate(block, first_query, key + first, of_queries, scores, grads);
                        Base::template add_product<kCount>(block, grads, k, first, grad_q);
                      }
                    });
    block.each_alone([&](int thread) {
      const float factors[2] = {static_cast<float>(a.scale), static_cast<float>(a.scale)};
      this->store(thread, grad_q[thread], a.grad_q, problem, first_query, a.time, factors);
    });
  }

 private:
  // Turns dP into the gradients of the scores.
  DEVICE_ONLY void differentiate(const Block& block, int first_query, int key, PerThread<Pair>& of_queries,
                                 PerThread<Scores>& scores, PerThread<Scores>& grads) const {
    constexpr int kKeys = 8 * kCount;
    const bool all_attend = key + kKeys <= this->keys_of(first_query + 1);
    const float scale = static_cast<float>(a.scale) * kLog2E;
    block.each_alone([&](int thread) {
      thread = recomputed(thread);
      UNROLL_ALL
      for (int half = 0; half < 2; ++half) {
        const int reach = all_attend ? kKeys : this->reach(first_query + Base::row_of(thread) + half * 8, key);
        const float shift = of_queries[thread].shift[half], product = of_queries[thread].product[half];
        UNROLL_ALL
        for (int n = 0; n < kCount; ++n) {
          UNROLL_ALL
          for (int i = 0; i < 2; ++i) {
            float& grad = grads[thread].tiles[n].at[half * 2 + i];
            const float weight = fast_exp2(scores[thread].tiles[n].at[half * 2 + i] * scale - shift);
            grad = n * 8 + sums_column(thread, i) < reach ? weight * (grad - product) : 0;
          }
        }
      }
    });
  }
};

// grad_k and grad_v of a block of keys. Scores and their gradients are transposed: rows are keys.
template <class T, int kDim>
struct MmaBackwardKeys : WarpTiles<T, kDim> {
  using Base = WarpTiles<T, kDim>;
  using Base::a, Base::kTile;
  using typename Base::Matrix, typename Base::Result, typename Base::Rows;
  static constexpr int kCount = 4;
  using Scores = typename Base::template Scores<kCount>;

  DEVICE_ONLY void operator()(const Block& block) const {
    BLOCK_SHARED float shifts[2][kTile], products[2][kTile];  // of the queries of a tile, as in MmaBackwardQueries
    const std::int64_t problem = this->problem_of(block);
    const int first_key = static_cast<int>(this->blocks.divide(block.index()).rest) * kBlockRows;
    PerThread<Rows> k, v;
    PerThread<Result> grad_k, grad_v;
    Base::load(block, a.rows(a.k, problem, a.time_k, kDim).from_row(first_key), k);
    Base::load(block, a.rows(a.v, problem, a.time_k, kDim).from_row(first_key), v);
    Base::clear(block, grad_k), Base::clear(block, grad_v);
    const auto load_queries = [&](int thread, int first, int stage) {
      if (thread >= kTile) return;
      const int query = first + thread;
      const std::int64_t row = problem * a.time + query;
      shifts[stage][thread] = query < a.time ? a.log_sums[row] * kLog2E : kInfinity;
      products[stage][thread] = query < a.time ? a.products[row] : 0;
    };
    Base::for_tiles(block, a.rows(a.q, problem, a.time, kDim), a.rows(a.grad, problem, a.time, kDim),
                    a.causal ? first_key : 0, static_cast<int>(a.time), load_queries,
                    [&](int query, const Matrix& q, const Matrix& grad, int stage) {
                      ONE_BY_ONE
                      for (int first = 0; first < kTile; first += 8 * kCount) {
                        PerThread<Scores> scores, grads;
                        Base::template multiply<kCount>(block, k, q, first, scores);
                        Base::template multiply<kCount>(block, v, grad, first, grads);
                        differentiate(block, first_key, query + first, shifts[stage] + first, products[stage] + first,
                                      scores, grads);
                        Base::template add_product<kCount>(block, scores, grad, first, grad_v);
                        Base::template add_product<kCount>(block, grads, q, first, grad_k);
                      }
                    });
    block.each_alone([&](int thread) {
      const float scale[2] = {static_cast<float>(a.scale), static_cast<float>(a.scale)}, one[2] = {1, 1};
      if (a.grad_k.data) this->store(thread, grad_k[thread], a.grad_k, problem, first_key, a.time_k, scale);
      if (a.grad_v.data) this->store(thread, grad_v[thread], a.grad_v, problem, first_key, a.time_k, one);
    });
  }

 private:
  // Turns scores into weights, and dP into the gradients of the scores.
  DEVICE_ONLY void differentiate(const Block& block, int first_key, int query, const float* shifts,
                                 const float* products, PerThread<Scores>& scores, PerThread<Scores>& grads) const {
    const bool all_attend = !a.causal || first_key + kBlockRows <= query + 1;
    const float scale = static_cast<float>(a.scale) * kLog2E;
    block.each_alone([&](int thread) {
      thread = recomputed(thread);
      // The difference of the key and the query of element 0: the query attends if it is at most 0.
      const auto ahead = first_key - query + Base::row_of(thread) - sums_column(thread, 0);
      UNROLL_ALL
      for (int n = 0; n < kCount; ++n) {
        UNROLL_ALL
        for (int i = 0; i < 4; ++i) {
          const int at = n * 8 + sums_column(thread, i);
          float& score = scores[thread].tiles[n].at[i];
          float& grad = grads[thread].tiles[n].at[i];
          const bool attends = all_attend || ahead + i / 2 * 8 - n * 8 - i % 2 <= 0;
          score = attends ? fast_exp2(score * scale - shifts[at]) : 0;
          grad = attends ? score * (grad - products[at]) : 0;
        }
      }
    });
  }
};

// Whether every row starts at a multiple of 16 bytes.
bool is_aligned(const raw::Attention& a, const raw::AttentionOperand& x) {
  constexpr std::int64_t kElements = 8;
  bool aligned = reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.row % kElements == 0;
  for (std::size_t i = 0; i < x.batch.size(); ++i) aligned &= a.batch[i] == 1 || x.batch[i] % kElements == 0;
  return aligned;
}

bool takes(const raw::Attention& a, DType dtype) {
  if (!has_tensor_cores() || (dtype != kFloat16 && dtype != kBFloat16)) return false;
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // indices have 32 bits
  const bool has_kernel = a.dim == a.dim_v && (a.dim == 32 || a.dim == 64 || a.dim == 128);
  if (!has_kernel || a.keep < 1 || a.mask.data || !(a.scale > 0) || a.time > kMostRows || a.time_k > kMostRows)
    return false;
  for (const raw::AttentionOperand* x : {&a.q, &a.k, &a.v, &a.out, &a.grad, &a.grad_q, &a.grad_k, &a.grad_v}) {
    if (x->data && !is_aligned(a, *x)) return false;
  }
  return true;
}

template <template <class, int> class Kernel>
bool launch(const char* op, const raw::Attention& attention, DType dtype, std::int64_t rows, float* products) {
  if (!takes(attention, dtype)) return false;
  for_half(dtype, [&]<class T>(T) {
    AttentionOf<T> a(attention);
    a.products = products;
    const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    if (a.dim == 32) return launch_blocks(op, a.count * blocks, Kernel<T, 32>{{a, Divisor(blocks)}});
    if (a.dim == 64) return launch_blocks(op, a.count * blocks, Kernel<T, 64>{{a, Divisor(blocks)}});
    launch_blocks(op, a.count * blocks, Kernel<T, 128>{{a, Divisor(blocks)}});
  });
  return true;
}

}  // namespace

bool attention_by_mma(const raw::Attention& a, DType dtype) {
  return launch<MmaForward>("attention", a, dtype, a.time, nullptr);
}
bool attention_backward_queries_by_mma(const raw::Attention& a, DType dtype, float* products) {
  return launch<MmaBackwardQueries>("attention backward", a, dtype, a.time, products);
}
bool attention_backward_keys_by_mma(const raw::Attention& a, DType dtype, float* products) {
  return launch<MmaBackwardKeys>("attention backward", a, dtype, a.time_k, products);
}

}  // namespace lockstep::LOCKSTEP_KERNELS
