// Exercise 9: values and gradients of attention by tiles, and the bytes that it allocates.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "harness.h"

namespace grader {
namespace {

struct Variant {
  std::int64_t heads = 2, dim = 16, tile = 32, time = 200;  // `time` is not divisible by `tile`
};

Variant variant() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  const int tile = 16 + dice.roll(17);
  return {
      .heads = 1 + dice.roll(4), .dim = 8 + dice.roll(17), .tile = tile, .time = 6 * tile + 1 + dice.roll(tile - 1)};
}

// Inputs and an upstream gradient, the same in every run. Keys grow along the sequence, so that most queries find a larger
// score in a later tile.
struct Case {
  ls::Tensor q, k, v, grad;

  explicit Case(std::int64_t time, double size = 2) {
    ls::Tensor* const all[] = {&q, &k, &v, &grad};
    for (int i = 0; i < 4; ++i) {
      const ls::Shape shape{variant().heads, time, variant().dim};
      const ls::Tensor index = ls::arange(shape.numel(), {.dtype = ls::kFloat64});
      *all[i] = (ls::sin(index * (1.3 + i) + i) * (i < 2 ? size : 1)).to(ls::kFloat32).reshape(shape);
    }
    k = k * (ls::arange(1, time + 1, 1, {.dtype = ls::kFloat32}) * (2.0 / time)).reshape({time, 1});
  }
  exercises::Attended run(std::int64_t tile) const { return exercises::attention_by_tiles(q, k, v, tile); }
};

double distance(const ls::Tensor& a, const ls::Tensor& b) { return std::abs(ls::abs(a - b).max().item<double>()); }

// `error`: of an element, relative to the largest. `suggestion` says what a wrong `have` looks like.
void require_equal(const ls::Tensor& have, const ls::Tensor& want, const std::string& what, double error,
                   const std::function<std::string(double limit)>& suggestion) {
  require(have.defined() && have.shape() == want.shape() && have.dtype() == want.dtype(), what, ": expected a tensor ",
          want.shape().to_string(), " f32");
  const double limit = error * std::max(1.0, ls::abs(want).max().item<double>());
  const auto differs = [limit](const ls::Tensor& x, const ls::Tensor& y) { return !(distance(x, y) <= limit); };  // NaN
  if (!differs(have, want)) return;
  std::int64_t first = 0;
  while (!differs(have.slice(1, first, first + 1), want.slice(1, first, first + 1))) ++first;
  throw Missing(text(what, ": an element is off by ", distance(have, want), ", expected at most ", limit,
                     "; the first is at position ", first, suggestion(limit)));
}

constexpr double kError = 2e-5, kInfinity = std::numeric_limits<double>::infinity();

// The scores of all queries with all keys.
ls::Tensor scores_of(const Case& c) {
  return ls::matmul(c.q, c.k.transpose(1, 2)) / std::sqrt(static_cast<double>(c.q.size(2)));
}

// The scores with the keys of a query's tile and of those before. Tiles of one: causal attention.
ls::Tensor masked(const ls::Tensor& scores, double tile = 1) {
  const std::int64_t time = scores.size(1);
  const ls::Tensor tile_of = ls::floor_divide(ls::arange(time), tile);
  return ls::masked_fill(scores, tile_of > tile_of.reshape({time, 1}), -kInfinity);
}

ls::Tensor sum_of(const ls::Tensor& x) { return ls::sum(x, {-1}, true); }

std::string meaning_of_out(const Case& c, std::int64_t tile, const ls::Tensor& have, double limit) {
  if (!ls::isfinite(have).all().item<bool>()) return ". It is not finite: does an exp overflow?";
  const ls::Tensor scores = scores_of(c), causal = masked(scores);
  std::vector<ls::Tensor> largest;  // score of each query in the tiles so far, for each key
  for (std::int64_t begin = 0; begin < c.q.size(1); begin += tile) {
    const std::int64_t end = std::min(begin + tile, c.q.size(1));
    largest.push_back(ls::amax(causal.slice(2, 0, end), {-1}, true).expand({-1, -1, end - begin}));
  }
  const ls::Tensor scaled = ls::exp(causal - ls::amax(causal, {-1}, true)),
                   stale = ls::exp(causal - ls::cat(largest, 2));
  struct Mistake {
    ls::Tensor weights;
    const char* meaning;
  };
  const Mistake mistakes[] = {
      {stale / sum_of(scaled), "The sum of weighted values is not rescaled when a later tile has a larger score"},
      {scaled / sum_of(stale), "The sum of exp is not rescaled when a later tile has a larger score"},
      {stale / sum_of(stale), "Neither sum is rescaled when a later tile has a larger score"},
      {scaled, "The sum of weighted values is not divided by the sum of exp"},
      {ls::softmax(causal * std::sqrt(static_cast<double>(c.q.size(2))), -1),
       "The scores are not divided by sqrt(dim)"},
      {ls::softmax(scores, -1), "Queries attend to all keys, also to later ones"},
      {ls::softmax(masked(scores, static_cast<double>(tile)), -1), "Queries attend to later keys of their own tile"}};
  for (const Mistake& mistake : mistakes)
    if (distance(have, ls::matmul(mistake.weights, c.v)) <= limit) return text(". ", mistake.meaning);
  return "";
}

// Returns the largest score. The error of a score is relative, that of its exp absolute.
double check_result(const Case& c, std::int64_t tile, double error = kError) {
  const exercises::Attended have = c.run(tile);
  require_equal(have.out, ls::scaled_dot_product_attention(c.q, c.k, c.v, {.is_causal = true}), "out", error,
                [&](double limit) { return meaning_of_out(c, tile, have.out, limit); });
  const ls::Tensor scores = masked(scores_of(c)), want = ls::logsumexp(scores, {-1});
  require_equal(have.log_sums, want, "log_sums", kError, [&](double limit) {
    const bool is_shifted = distance(have.log_sums, want - ls::amax(scores, {-1})) <= limit;
    return is_shifted ? ". These are logs of the sums of exp(score - largest): the largest score is missing" : "";
  });
  return scores.max().item<double>();
}

std::string check_one_tile() {
  check_result(Case(variant().tile), variant().tile);
  return text("time ", variant().tile, ", one tile");
}

std::string check_tiles() {
  check_result(Case(3 * variant().tile), variant().tile);
  check_result(Case(variant().time), variant().tile);
  check_result(Case(variant().time), 1);
  return text("time ", variant().time, ", tiles of ", variant().tile, " and 1");
}

std::string check_large_scores() {
  return text("up to ", check_result(Case(variant().time, 30), variant().tile, 2e-3));
}

std::string check_skipped() {
  const Case c(3 * variant().tile);
  const ls::Tensor want = c.run(variant().tile).out.clone();
  const std::int64_t seen = 2 * variant().tile;
  for (const ls::Tensor& x : {c.k, c.v}) x.slice(1, seen, 3 * variant().tile).fill_(std::nan(""));
  require_equal(c.run(variant().tile).out.slice(1, 0, seen), want.slice(1, 0, seen),
                "NaN in the last tile of keys and values, queries before it", kError, [](double) { return ""; });
  return "keys after a tile of queries are not read";
}

std::string check_gradients() {
  for (const std::int64_t time : {3 * variant().tile, variant().time}) {
    const Case c(time);
    const exercises::AttentionGradients have =
        exercises::attention_backward_by_tiles(c.grad, c.q, c.k, c.v, c.run(variant().tile), variant().tile);
    for (const ls::Tensor& x : {c.q, c.k, c.v}) x.requires_grad_();
    ls::scaled_dot_product_attention(c.q, c.k, c.v, {.is_causal = true}).backward(c.grad);
    // A mistake in the gradient of the scores is one in those of q and k: suggestions for q are enough.
    require_equal(have.q, c.q.grad(), "gradient of q", kError, [&](double limit) {
      const double root = std::sqrt(static_cast<double>(variant().dim));
      const ls::NoGradGuard no_grad;
      const ls::Tensor without = ls::softmax(masked(scores_of(c)), -1) * ls::matmul(c.grad, c.v.transpose(1, 2)) / root;
      if (distance(have.q, ls::matmul(without, c.k)) <= limit) return ". D is not subtracted (see the last hint)";
      return distance(have.q, c.q.grad() * root) <= limit * root ? ". It is sqrt(dim) times too large" : "";
    });
    const auto nothing = [](double) { return ""; };
    require_equal(have.k, c.k.grad(), "gradient of k", kError, nothing);
    require_equal(have.v, c.v.grad(), "gradient of v", kError, nothing);
  }
  return text("of q, k and v, time ", variant().time);
}

// Runs `work` and checks that its peak of allocated bytes exceeds `results` tensors like q by at most `tiles` tiles.
template <class Work>
std::string require_bytes(const Case& c, const Work& work, int results, int tiles) {
  const auto [heads, dim, tile, ignored] = variant();
  const std::int64_t time = c.q.size(1), tensor = 4 * heads * time * dim, sums = 4 * heads * time;
  const std::int64_t limit = results * tensor + sums + tiles * 4 * heads * tile * (tile + dim);
  ls::reset_peak_bytes();
  const std::int64_t before = ls::allocator_stats().allocated_bytes;
  work();
  const std::int64_t bytes = ls::allocator_stats().peak_bytes - before;
  require(bytes <= limit, "time ", time, ": ", bytes, " bytes allocated at the peak, expected ", limit,
          " at most; all scores are ", 4 * heads * time * time);
  return text(bytes, " bytes of ", limit, " for time ", time);
}

std::string check_bytes() {
  std::string observed;
  for (const std::int64_t time : {8 * variant().tile, 24 * variant().tile}) {
    const Case c(time);
    observed = require_bytes(
        c, [&] { c.run(variant().tile); }, 1, 6);
  }
  return observed;
}

std::string check_backward_bytes() {
  std::string observed;
  for (const std::int64_t time : {8 * variant().tile, 24 * variant().tile}) {
    const Case c(time);
    const exercises::Attended forward = c.run(variant().tile);
    observed = require_bytes(
        c, [&] { exercises::attention_backward_by_tiles(c.grad, c.q, c.k, c.v, forward, variant().tile); }, 3, 8);
  }
  return observed;
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const Variant v = variant();
  print_task(text(v.heads, " heads of dimension ", v.dim, ", tiles of ", v.tile, ", time ", v.time));
  return {{"values: one tile", check_one_tile},
          {"values: several tiles", check_tiles},
          {"values: large scores", check_large_scores},
          {"values: tiles after the diagonal are skipped", check_skipped},
          {"gradients", check_gradients},
          {"bytes: forward", check_bytes},
          {"bytes: backward", check_backward_bytes}};
}

}  // namespace grader
