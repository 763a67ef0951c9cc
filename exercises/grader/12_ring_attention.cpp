// Exercise 12: positions, the mean loss, and the values and bytes of ring attention. A wrong result is compared with
// those of common mistakes, so that the message can name the mistake.
#include <algorithm>
#include <cmath>

#include "harness.h"

namespace grader {
namespace {

using exercises::BlockAttention;

constexpr double kError = 1e-6;  // relative to the largest element

struct Variant {
  std::int64_t batch = 2, heads = 2, tokens = 6, dim = 8;  // tokens: of a rank
};

Variant variant() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  return {.batch = 1 + dice.roll(3), .heads = 1 + dice.roll(4), .tokens = 4 + dice.roll(8), .dim = 4 + dice.roll(13)};
}

// Queries, keys and values of whole sequences, the same in every run.
struct Case {
  int size = 0;  // number of ranks
  Variant v;
  ls::Tensor queries, keys, values;

  explicit Case(int ranks, const Variant& shape = variant(), double scale = 1) : size(ranks), v(shape) {
    ls::Tensor* const all[] = {&queries, &keys, &values};
    for (int i = 0; i < 3; ++i) {
      const ls::Shape whole{v.batch, v.heads, v.tokens * size, v.dim};
      const ls::Tensor index = ls::arange(whole.numel(), {.dtype = ls::kFloat64});
      *all[i] = (ls::sin(index * (1.3 + i) + i) * (i < 2 ? scale : 1)).reshape(whole);
    }
  }
  ls::Tensor part(const ls::Tensor& x, int rank) const { return x.narrow(2, rank * v.tokens, v.tokens).contiguous(); }
  BlockAttention attend(int rank, int block) const {
    return exercises::attend(part(queries, rank), part(keys, block), part(values, block), rank == block);
  }
};

// --- results of common mistakes --------------------------------------------------------------------------------------
// How often a query uses the keys of a sequence block: the keys up to the query's place in its own sequence block, and
// the keys after this place.
struct Uses {
  int before = 0, after = 0;
};

using Merge = void (*)(BlockAttention& sum, const BlockAttention& next, int count);  // count: results merged so far

struct Mistake {
  const char* suggestion;
  Uses own = {1, 0}, earlier = {1, 1}, later = {0, 0};  // of the rank's own sequence block, those before, those after
  Merge merge = nullptr;                                // if set: the right keys with this rule of merging
  bool repeats = false;                                 // with `merge`: the keys of rank - 1 in every pass
};

constexpr Merge kRightMerge = [](BlockAttention& sum, const BlockAttention& next, int) {
  const ls::Tensor above = next.log_sums - sum.log_sums;
  sum.out = sum.out + ls::sigmoid(above) * (next.out - sum.out);
  sum.log_sums = sum.log_sums + ls::softplus(above);
};

constexpr Merge kMean = [](BlockAttention& sum, const BlockAttention& next, int count) {
  sum.out = sum.out + (next.out - sum.out) / (count + 1);
};

constexpr Merge kRunningMean = [](BlockAttention& sum, const BlockAttention& next, int) {
  sum.out = (sum.out + next.out) / 2;
};

constexpr Merge kSum = [](BlockAttention& sum, const BlockAttention& next, int) { sum.out = sum.out + next.out; };

constexpr Merge kOldLogSums = [](BlockAttention& sum, const BlockAttention& next, int) {
  sum.out = sum.out + ls::sigmoid(next.log_sums - sum.log_sums) * (next.out - sum.out);
};

constexpr Merge kExchanged = [](BlockAttention& sum, const BlockAttention& next, int) {
  const ls::Tensor above = next.log_sums - sum.log_sums;
  sum.out = sum.out + ls::sigmoid(-above) * (next.out - sum.out);
  sum.log_sums = sum.log_sums + ls::softplus(above);
};

constexpr Mistake kMistakes[] = {
    {.suggestion =
         "The keys of the rank's own sequence block are counted twice: merge attention to this sequence block once",
     .own = {2, 0}},
    {.suggestion =
         "The keys of the rank's own sequence block are counted twice, the second time without the causal mask: merge "
         "attention to this sequence block once",
     .own = {2, 1}},
    {.suggestion =
         "Queries attend to later sequence blocks. After p passes rank r has the keys of sequence block r - p, modulo "
         "C. If r - p is negative, the sequence block is a later one: pass it on, but do not merge attention to it",
     .later = {1, 1}},
    {.suggestion =
         "Queries attend to later keys of the rank's own sequence block, which needs the causal mask: attend(q, k, v, "
         "true)",
     .own = {1, 1}},
    {.suggestion = "Queries attend to all keys, later ones included: use the causal mask in the rank's own sequence "
                   "block, and do not merge attention to later sequence blocks",
     .own = {1, 1},
     .later = {1, 1}},
    {.suggestion =
         "The causal mask is applied in earlier sequence blocks, too. All their keys are before the queries: use "
         "attend(q, k, v, false)",
     .earlier = {1, 0}},
    {.suggestion =
         "Queries attend only to the rank's own sequence block: merge attention to the earlier sequence blocks that "
         "arrive",
     .earlier = {0, 0}},
    {.suggestion =
         "Attention to later sequence blocks is merged, and to earlier ones it is not. After p passes rank r has the "
         "keys of sequence block r - p, modulo C",
     .earlier = {0, 0},
     .later = {1, 1}},
    {.suggestion =
         "Attention to the sequence block of rank - 1 is merged after every pass: pass on the keys and values that "
         "arrived, not the rank's own",
     .merge = kRightMerge,
     .repeats = true},
    {.suggestion = "The results are merged by a plain average: weight them by their log-sum-exp, o += sigmoid(s' - s) "
                   "(o' - o)",
     .merge = kMean},
    {.suggestion = "Each result is merged with the one before by a plain average: weight them by their log-sum-exp, "
                   "o += sigmoid(s' - s) (o' - o)",
     .merge = kRunningMean},
    {.suggestion = "The results are added: weight them by their log-sum-exp, o += sigmoid(s' - s) (o' - o)",
     .merge = kSum},
    {.suggestion =
         "The log-sum-exp is not merged, so the third sequence block has the wrong weight: s += softplus(s' - s) in "
         "every merge",
     .merge = kOldLogSums},
    {.suggestion = "The weights are exchanged: the weight of the new result is sigmoid(s' - s), where s' is its "
                   "log-sum-exp",
     .merge = kExchanged},
};

ls::Tensor attention_with(const Case& c, const Mistake& mistake) {
  const ls::Tensor all = ls::ones({c.v.tokens, c.v.tokens}, {.dtype = ls::kFloat64});
  std::vector<ls::Tensor> rows;
  for (int rank = 0; rank < c.size; ++rank) {
    std::vector<ls::Tensor> row;
    for (int block = 0; block < c.size; ++block) {
      const Uses uses = block == rank ? mistake.own : block < rank ? mistake.earlier : mistake.later;
      row.push_back(ls::tril(all) * uses.before + ls::triu(all, 1) * uses.after);
    }
    rows.push_back(ls::cat(row, 1));
  }
  // A key that is used n times adds n exp(score) = exp(score + log n).
  return ls::scaled_dot_product_attention(c.queries, c.keys, c.values, {.attn_mask = ls::log(ls::cat(rows, 0))});
}

ls::Tensor merged_with(const Case& c, const Mistake& mistake) {
  std::vector<ls::Tensor> outs;
  for (int rank = 0; rank < c.size; ++rank) {
    BlockAttention sum = c.attend(rank, rank);
    for (int step = 1; step <= rank; ++step)
      mistake.merge(sum, c.attend(rank, mistake.repeats ? rank - 1 : rank - step), step);
    outs.push_back(sum.out);
  }
  return ls::cat(outs, 2);
}

// --- values ----------------------------------------------------------------------------------------------------------
// The largest difference at each position, relative to the largest element of `want`.
ls::Tensor differences(const ls::Tensor& have, const ls::Tensor& want) {
  return ls::amax(ls::abs(have - want), {0, 1, 3}) / ls::abs(want).max();
}

bool is_close(const ls::Tensor& have, const ls::Tensor& want) {
  return differences(have, want).max().item<double>() <= kError;  // false if it is NaN
}

std::string suggestion_for(const Case& c, const ls::Tensor& have) {
  for (const Mistake& mistake : kMistakes) {
    const ls::Tensor wrong = mistake.merge ? merged_with(c, mistake) : attention_with(c, mistake);
    if (is_close(have, wrong)) return mistake.suggestion;
  }
  return "This is none of the common mistakes: calculate a small case by hand, 2 ranks with 2 tokens each";
}

// The results of all ranks, as one tensor.
ls::Tensor run(const Case& c) {
  std::vector<ls::Tensor> outs(static_cast<std::size_t>(c.size));
  run_ranks(c.size, [&](const Group& group) {
    const int rank = group->rank();
    const ls::Tensor q = c.part(c.queries, rank), k = c.part(c.keys, rank), v = c.part(c.values, rank);
    const ls::Tensor out = exercises::ring_attention(q, k, v, *group);
    group->barrier();
    require(out.defined() && out.shape() == q.shape() && out.dtype() == q.dtype(), c.size, " ranks, rank ", rank,
            ": expected a tensor ", q.shape().to_string(), " f64");
    require(ls::equal(k, c.part(c.keys, rank)) && ls::equal(v, c.part(c.values, rank)), c.size, " ranks, rank ", rank,
            ": k or v has changed. Receive into new tensors: those of the caller are still needed in backward");
    outs[static_cast<std::size_t>(rank)] = out;
  });
  return ls::cat(outs, 2);
}

void check_result(const Case& c) {
  const ls::Tensor have = run(c);
  const ls::Tensor want = ls::scaled_dot_product_attention(c.queries, c.keys, c.values, {.is_causal = true});
  if (is_close(have, want)) return;
  const ls::Tensor off = differences(have, want);
  std::int64_t at = 0;
  while (off[at].item<double>() <= kError) ++at;
  const double by = off[at].item<double>();
  const std::string where = text(c.size, " ranks, rank ", at / c.v.tokens, ", position ", at, ": the result is ");
  require(!std::isnan(by), where, "NaN, expected a number. exp(s) overflows, and a merge that begins with s = -inf ",
          "computes inf - inf: use only differences s' - s, and begin with the rank's own sequence block");
  throw Missing(text(where, "off by ", by, " of the largest element. ", suggestion_for(c, have)));
}

std::string check_values(const std::vector<int>& sizes) {
  for (const int size : sizes) check_result(Case(size));
  return text("within ", kError, " of attention on one rank");
}

std::string check_large_scores() {
  const Case c(3, variant(), 60);
  check_result(c);
  const double largest = ls::matmul(c.queries, c.keys.transpose(-2, -1)).max().item<double>();
  return text("up to ", std::round(largest / std::sqrt(static_cast<double>(c.v.dim))), ", whose exp is infinite");
}

// A send of a small message is complete once its bytes are in a buffer; a send of these sequence blocks once they are
// received.
std::string check_large_blocks() {
  const Case c(3, {.batch = 1, .heads = 4, .tokens = 256, .dim = 64});
  const std::string bytes = text("keys of ", c.part(c.keys, 0).numel() * 8, " bytes");
  try {
    check_result(c);
  } catch (const ls::CommTimeout&) {
    throw Missing(text("3 ranks, ", bytes,
                       ": it hangs. A large message is not buffered: its send is complete when the ",
                       "other rank has received it. Start the recv before you wait for the send"));
  }
  return bytes + ", which no buffer holds";
}

// --- bytes -----------------------------------------------------------------------------------------------------------
// The mistake that the bytes of a rank suggest. `others`: bytes to ranks other than rank + 1.
std::string meaning_of(std::int64_t next, std::int64_t others, int size, std::int64_t block) {
  if (others > 0 && next > 0)
    return "A rank that sends its sequence block to all others takes part in a gather, after which every rank stores "
           "the sequence blocks of all ranks. Send to rank + 1 only, and pass on what arrived";
  if (others > 0) return "Send to rank + 1";
  if (next == 2 * size * block)
    return "After size - 1 passes every rank has had every sequence block: this is one pass too many";
  if (next == (size - 1) * block) return "These are the bytes of keys or of values, not of both";
  return next < 2 * (size - 1) * block
             ? "Pass on every sequence block in each of size - 1 passes, also one that this rank does not attend to"
             : "Send keys and values once in each of size - 1 passes";
}

std::string check_bytes() {
  std::string observed;
  for (const int size : {3, 4}) {
    const Case c(size);
    Links links;
    run_ranks(size, [&](const Group& group) {
      const int rank = group->rank();
      group->traffic().begin_step();
      exercises::ring_attention(c.part(c.queries, rank), c.part(c.keys, rank), c.part(c.values, rank), *group);
      add_step(links, group->traffic());
      group->barrier();
    });
    const std::int64_t block = 8 * c.part(c.keys, 0).numel(), want = 2 * (size - 1) * block;
    for (int rank = 0; rank < size; ++rank) {
      const std::int64_t next = links[{rank, (rank + 1) % size}].bytes, others = sent_by(links, rank).bytes - next;
      require(next == want && others == 0, size, " ranks: rank ", rank, " sent rank + 1 ", next,
              " bytes and other ranks ", others, ", expected ", want, " and 0, where B = ", block, ". ",
              meaning_of(next, others, size, block));
    }
    observed = text(want, " bytes of each of ", size, " ranks, 2 (C - 1) B for C = ", size, " and B = ", block);
  }
  return observed;
}

// --- positions and loss ----------------------------------------------------------------------------------------------
std::string check_positions() {
  const std::int64_t tokens = variant().tokens;
  for (const int size : {2, 3, 4}) {
    for (int rank = 0; rank < size; ++rank) {
      const std::int64_t begin = rank * tokens;
      const ls::Tensor have = exercises::positions(rank, size, size * tokens);
      require(have.defined() && have.shape() == ls::Shape{tokens} && have.dtype() == ls::kInt64, "rank ", rank, " of ",
              size, ", time ", size * tokens, ": expected a tensor ", ls::Shape{tokens}.to_string(),
              " int64. `time` is the length of the whole sequence");
      require(rank == 0 || !ls::equal(have, ls::arange(tokens)), "rank ", rank, " of ", size,
              ": the positions are 0 to ", tokens - 1, ", expected ", begin, " to ", begin + tokens - 1,
              ". These are local positions: every rank counts from 0, so the model takes the first token of each "
              "sequence block for the first of the sequence. Begin at rank * time / size");
      require(ls::equal(have, ls::arange(begin, begin + tokens)), "rank ", rank, " of ", size,
              ": the first position is ", have[0].item<std::int64_t>(), " and the last ",
              have[tokens - 1].item<std::int64_t>(), ", expected ", begin, " to ", begin + tokens - 1, " in order");
    }
  }
  return text("of ", tokens, " tokens on each rank");
}

// The losses of a rank's tokens: one fewer on the last rank.
ls::Tensor losses_of(int rank, int size) {
  const std::int64_t count = variant().tokens - (rank == size - 1 ? 1 : 0);
  return ls::sin(ls::arange(count, {.dtype = ls::kFloat64}) * 1.7) * 0.3 + (3 - 0.5 * rank);
}

std::string check_loss() {
  for (const int size : {2, 3, 4}) {
    double sum = 0, count = 0, means = 0;
    for (int rank = 0; rank < size; ++rank) {
      const ls::Tensor losses = losses_of(rank, size);
      sum += losses.sum().item<double>(), count += static_cast<double>(losses.numel());
      means += losses.mean().item<double>();
    }
    run_ranks(size, [&](const Group& group) {
      const ls::Tensor losses = losses_of(group->rank(), size);
      const double have = exercises::mean_loss(losses, *group);
      group->barrier();
      const auto is = [&](double value) { return std::abs(have - value) <= kError * std::abs(value); };
      const char* const suggestion =
          is(losses.mean().item<double>())
              ? "This is the mean over the rank's own tokens: each rank reports another loss. Sum over all ranks first"
          : is(means / size)
              ? "This is the mean of the ranks' means. The last rank has one token fewer, so its tokens count "
                "more: divide the sum over all tokens by the number of all tokens"
          : is(sum) ? "This is the sum over all tokens: divide it by the number of all tokens"
          : is(sum / static_cast<double>(losses.numel()))
              ? "This is the sum over all ranks, divided by the number of the rank's own tokens: sum that number, too"
              : "Divide the sum over all tokens by the number of all tokens";
      require(is(sum / count), size, " ranks, rank ", group->rank(), ": the loss is ", have, ", expected ", sum / count,
              ". ", suggestion);
    });
  }
  return "the mean over the tokens of all ranks";
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const Variant v = variant();
  print_task(
      text(v.batch, " sequences, ", v.heads, " heads of dimension ", v.dim, ", ", v.tokens, " tokens on each rank"));
  return {{"positions", check_positions},
          {"mean loss", check_loss},
          {"2 ranks: values", [] { return check_values({2}); }},
          {"3 and 4 ranks: values",
           [] {
             return check_values({3, 4});
           }},
          {"large scores: values", check_large_scores},
          {"large sequence blocks", check_large_blocks},
          {"bytes", check_bytes}};
}

}  // namespace grader
