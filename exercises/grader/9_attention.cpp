// Exercise 9: values and gradients of attention by tiles, and the bytes that it allocates.
#include <algorithm>
#include <cmath>
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

// Inputs and an upstream gradient, the same in every run.
struct Case {
  ls::Tensor q, k, v, grad;

  explicit Case(std::int64_t time, double size = 1) {
    ls::Tensor* const all[] = {&q, &k, &v, &grad};
    for (int i = 0; i < 4; ++i) {
      const ls::Shape shape{variant().heads, time, variant().dim};
      const ls::Tensor index = ls::arange(shape.numel(), {.dtype = ls::kFloat64});
      *all[i] = (ls::sin(index * (1.3 + i) + i) * (i < 2 ? size : 1)).to(ls::kFloat32).reshape(shape);
    }
  }
  exercises::Attended run(std::int64_t tile) const { return exercises::attention_by_tiles(q, k, v, tile); }
};

// `error`: of an element, relative to the largest.
void require_equal(const ls::Tensor& have, const ls::Tensor& want, const std::string& what, double error = 2e-5) {
  require(have.defined() && have.shape() == want.shape() && have.dtype() == want.dtype(), what, ": expected a tensor ",
          want.shape().to_string(), " f32");
  const double off = ls::abs(have - want).max().item<double>(), size = ls::abs(want).max().item<double>();
  require(off <= error * std::max(size, 1.0), what, ": an element is off by ", off);  // also if off is NaN
}

// Returns the largest score. The error of a score is relative, that of its exp absolute.
double check_result(const Case& c, std::int64_t tile, double error = 2e-5) {
  const exercises::Attended have = c.run(tile);
  require_equal(have.out, ls::scaled_dot_product_attention(c.q, c.k, c.v, {.is_causal = true}), "out", error);
  const std::int64_t time = c.q.size(1);
  const ls::Tensor scores = ls::matmul(c.q, c.k.transpose(1, 2)) / std::sqrt(static_cast<double>(c.q.size(2)));
  const ls::Tensor masked =
      ls::masked_fill(scores, ls::triu(ls::ones({time, time}), 1) > 0, -std::numeric_limits<double>::infinity());
  require_equal(have.log_sums, ls::logsumexp(masked, {-1}), "log_sums");
  return masked.max().item<double>();
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
                "NaN in the last tile of keys and values, queries before it");
  return "keys after a tile of queries are not read";
}

std::string check_gradients() {
  for (const std::int64_t time : {3 * variant().tile, variant().time}) {
    const Case c(time);
    const exercises::AttentionGradients have =
        exercises::attention_backward_by_tiles(c.grad, c.q, c.k, c.v, c.run(variant().tile), variant().tile);
    for (const ls::Tensor& x : {c.q, c.k, c.v}) x.requires_grad_();
    ls::scaled_dot_product_attention(c.q, c.k, c.v, {.is_causal = true}).backward(c.grad);
    require_equal(have.q, c.q.grad(), "gradient of q");
    require_equal(have.k, c.k.grad(), "gradient of k");
    require_equal(have.v, c.v.grad(), "gradient of v");
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
