// Exercise 21: norms and steps of whole parameters, from shards; bytes and messages of one all-reduce.
#include <algorithm>
#include <cmath>

#include "harness.h"

namespace grader {
namespace {

constexpr double kRate = 0.01;

struct Variant {
  std::vector<std::int64_t> sizes = {5, 12, 1, 7, 30, 4};  // of the parameters
  double phase = 0;                                        // of the data
};

const Variant& variant() {
  static const Variant chosen = [] {
    if (seed_of() == 0) return Variant();
    Dice dice(seed_of());
    Variant made{.sizes = {2, 3 + dice.roll(5), 10 + dice.roll(5), 1, 5 + dice.roll(5), 25 + dice.roll(10)},
                 .phase = 0.01 * dice.roll(300)};
    dice.shuffle(made.sizes);
    return made;
  }();
  return chosen;
}

std::int64_t elements() {
  std::int64_t all = 0;
  for (const std::int64_t size : variant().sizes) all += size;
  return all;
}

// Values with zeros at the end until `ranks` divides them. Later elements are larger, so that all norms differ.
ls::Tensor padded(double slope, int ranks) {
  const ls::Tensor index = ls::arange(0, static_cast<double>(elements()), 1, {.dtype = ls::kFloat64});
  const std::int64_t padding = (ranks - elements() % ranks) % ranks;
  return ls::cat(
      {(ls::sin(index * slope + variant().phase) + 1.5) * (index + 3), ls::zeros({padding}, {.dtype = ls::kFloat64})});
}
ls::Tensor all_parameters(int ranks) { return padded(0.7, ranks); }
ls::Tensor all_gradients(int ranks) { return padded(1.3, ranks); }

ls::Tensor shard_of(const ls::Tensor& whole, int rank, int ranks) {
  const std::int64_t own = whole.numel() / ranks;
  return whole.slice(0, rank * own, (rank + 1) * own).clone();
}

double norm_of(const ls::Tensor& t) { return std::sqrt((t * t).sum().item<double>()); }

// The formula of torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm.
bool is_near(double have, double want) { return std::abs(have - want) <= 1e-6 * std::abs(want); }

std::string meaning_of_norm(double have, const ls::Tensor& whole, int rank, int ranks) {
  const double norm = norm_of(whole);
  double sum = 0;
  for (int r = 0; r < ranks; ++r) sum += norm_of(shard_of(whole, r, ranks));
  if (is_near(have, norm_of(shard_of(whole, rank, ranks)))) return ": that is the norm of the rank's own shard";
  if (is_near(have, sum)) return ": that is the sum of the ranks' norms, but norms cannot be added, only their squares";
  if (is_near(have, norm * norm)) return ": that is the sum of squares, without the root";
  if (is_near(have, norm / std::sqrt(ranks))) return ": that has the mean of the ranks' sums of squares, not the sum";
  return "";
}

void require_clipped(const Group& group, double limit_of_norm, const std::string& what) {
  const int rank = group->rank(), ranks = group->size();
  const ls::Tensor whole = all_gradients(ranks), before = shard_of(whole, rank, ranks), have = before.clone();
  const double norm = norm_of(whole), factor = std::min(limit_of_norm, 1.0);
  const double returned = exercises::clip_shard(have, limit_of_norm * norm, *group);
  const std::string where = text(ranks, " ranks, ", what, ", rank ", rank, ": ");
  require(is_near(returned, norm), where, "the norm is ", returned, ", expected ", norm,
          meaning_of_norm(returned, whole, rank, ranks));
  const auto is = have.span<double>(), was = before.span<double>();
  for (std::size_t i = 0; i < is.size(); ++i)
    require(is_near(is[i], was[i] * factor), where, "an element ", was[i], " becomes ", is[i], ", expected ",
            was[i] * factor, is[i] == was[i] ? ": the gradient is not scaled" : "",
            factor == 1 ? ": a norm below the limit does not grow" : "");
}

std::string check_clip() {
  for (const int ranks : {2, 3, 4})
    run_ranks(ranks, [&](const Group& group) { require_clipped(group, 0.25, "the norm is four times max_norm"); });
  return text("the norm ", norm_of(all_gradients(1)), " becomes ", 0.25 * norm_of(all_gradients(1)));
}

std::string check_no_clip() {
  run_ranks(3, [&](const Group& group) { require_clipped(group, 2, "the norm is half of max_norm"); });
  return "unchanged";
}

// The traffic of four ranks together.
Sent count(const std::function<void(const Group& group)>& fn) {
  Links links;
  run_ranks(4, [&](const Group& group) {
    fn(group);
    add_links(links, group);
  });
  Sent all;
  for (const auto& [ends, sent] : links) all.bytes += sent.bytes, all.messages += sent.messages;
  return all;
}

// At most the traffic of one all-reduce of `numbers` numbers, f64.
std::string require_traffic(std::int64_t numbers, const std::function<void(const Group& group)>& fn) {
  const Sent have = count(fn);
  const Sent want =
      count([&](const Group& group) { group->all_reduce(ls::zeros({numbers}, {.dtype = ls::kFloat64}))->wait(); });
  require(have.messages > 0, "nothing is sent");
  require(have.bytes <= want.bytes && have.messages <= want.messages, "4 ranks send ", have.bytes, " bytes in ",
          have.messages, " messages; one all-reduce of ", numbers, numbers == 1 ? " number" : " numbers", " makes ",
          want.bytes, " in ", want.messages);
  return text(have.bytes, " bytes of 4 ranks in ", have.messages, " messages");
}

std::string check_clip_traffic() {
  return require_traffic(
      1, [](const Group& group) { exercises::clip_shard(shard_of(all_gradients(4), group->rank(), 4), 1, *group); });
}

// Sums of squares of parameters and of their gradients.
struct Squares {
  double p = 0, g = 0;
};

Squares squares_of(const ls::Tensor& p, const ls::Tensor& g) {
  return {(p * p).sum().item<double>(), (g * g).sum().item<double>()};
}

// The meaning of a factor of the gradient of parameter [begin, end) other than rate |p| / |g|. The rank has the elements
// [first, last) of it, and each of n ranks has `own` elements of the model.
std::string meaning_of_factor(double factor, std::int64_t begin, std::int64_t end, std::int64_t first,
                              std::int64_t last, std::int64_t own, int ranks) {
  const ls::Tensor p = all_parameters(ranks), g = all_gradients(ranks);
  const auto is = [&](double ratio) { return std::abs(factor - kRate * ratio) <= 1e-5 * kRate * ratio; };
  const auto ratio = [](const Squares& squares) { return std::sqrt(squares.p / squares.g); };
  if (is(ratio(squares_of(p.slice(0, first, last), g.slice(0, first, last)))))
    return "The norms are those of the rank's own elements of the parameter";
  if (is(ratio(squares_of(p, g)))) return "The norms are those of the whole model";
  const Squares right = squares_of(p.slice(0, begin, end), g.slice(0, begin, end));
  if (is(right.p / right.g)) return "The sums of squares are divided without their roots";
  if (is(1 / ratio(right))) return "That is |g| / |p|";
  if (is(1)) return "That is a step without norms";
  const auto as_first = [&](const ls::Tensor& t) { return t.view({ranks, own}).slice(1, begin, end); };
  if (begin < own && is(ratio(squares_of(as_first(p), as_first(g)))))
    return "Every rank takes its shard for the first: at which element of the model does it begin?";
  return "Do all ranks add squares of the same parameter, also a rank that has none of its elements?";
}

void require_step(const Group& group) {
  const int rank = group->rank(), ranks = group->size();
  const ls::Tensor p = all_parameters(ranks), g = all_gradients(ranks);
  const ls::Tensor have = shard_of(p, rank, ranks), gradient = shard_of(g, rank, ranks);
  exercises::lars_step(have, gradient, variant().sizes, kRate, *group);
  const std::int64_t own = have.numel(), from = rank * own;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < variant().sizes.size(); begin += variant().sizes[i], ++i) {
    const std::int64_t end = begin + variant().sizes[i];
    const std::int64_t first = std::max(begin, from), last = std::min(end, from + own);
    if (first >= last) continue;
    const Squares squares = squares_of(p.slice(0, begin, end), g.slice(0, begin, end));
    const double ratio = std::sqrt(squares.p / squares.g);
    for (std::int64_t at = first; at < last; ++at) {
      const double was = p[at].item<double>(), grad = g[at].item<double>(), is = have[at - from].item<double>();
      require(
          std::abs(is - (was - kRate * ratio * grad)) <= 1e-6 * kRate * ratio * grad, ranks, " ranks, rank ", rank,
          ": element ", at - begin, " of parameter ", i, " becomes ", is, ", expected ", was - kRate * ratio * grad,
          ". ",
          is == was ? "It has not changed" : meaning_of_factor((was - is) / grad, begin, end, first, last, own, ranks));
    }
  }
}

std::string check_step() {
  for (const int ranks : {2, 3, 4}) run_ranks(ranks, require_step);
  return text(variant().sizes.size(), " parameters on 2, 3 and 4 ranks");
}

std::string check_step_traffic() {
  return require_traffic(2 * std::ssize(variant().sizes), [](const Group& group) {
    exercises::lars_step(shard_of(all_parameters(4), group->rank(), 4), shard_of(all_gradients(4), group->rank(), 4),
                         variant().sizes, kRate, *group);
  });
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  print_task(text("parameters of ", ls::Shape(variant().sizes), " elements"));
  return {{"clip: the norm of all shards", check_clip},
          {"clip: a small norm", check_no_clip},
          {"clip: bytes and messages", check_clip_traffic},
          {"LARS: a norm for each parameter", check_step},
          {"LARS: bytes and messages", check_step_traffic}};
}

}  // namespace grader
