#include "tools/explain_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/error.h"
#include "lockstep/parallel/model_parallel/tensor_slices_internal.h"
#include "lockstep/tensor/tensor_part.h"

namespace par = lockstep::parallel;

namespace {

constexpr int kTerms = 64;  // numbers of the sums that show the effect of the order

std::vector<int> ranks_for(int slices) {
  std::vector<int> ranks;
  for (int n = 1; n <= slices; ++n) {
    if (slices % n == 0 && std::has_single_bit(static_cast<unsigned>(slices / n))) ranks.push_back(n);
  }
  return ranks;
}

// "1, 2 or 4"
std::string choice_of(const std::vector<int>& numbers) {
  if (numbers.size() == 1) return fmt::format("{}", numbers[0]);
  return fmt::format("{} or {}", fmt::join(numbers.begin(), numbers.end() - 1, ", "), numbers.back());
}

void check(const TensorQuestion& q) {
  if (q.width % q.heads != 0)
    throw lockstep::InvalidArgument(fmt::format("tensor: {} heads do not divide a width of {}; use --width {}", q.heads,
                                                q.width, (q.width / q.heads + 1) * q.heads));
  if (q.heads % q.slices != 0) {
    std::vector<int> possible;
    for (int n = 1; n <= q.heads; ++n) {
      if (q.heads % n == 0) possible.push_back(n);
    }
    throw lockstep::InvalidArgument(
        fmt::format("tensor: {} heads cannot be cut into {} slices of whole heads; use "
                    "--slices {}",
                    q.heads, q.slices, choice_of(possible)));
  }
  const std::vector<int> possible = ranks_for(q.slices);
  if (std::ranges::find(possible, q.ranks) == possible.end())
    throw lockstep::InvalidArgument(
        fmt::format("tensor: {} slices cannot be distributed evenly to {} ranks; use "
                    "--ranks {}",
                    q.slices, q.ranks, choice_of(possible)));
}

// The columns or rows of slice `index`. A Linear stores the transposed matrix: a row for each output.
std::vector<SeenRange> ranges_of(const SeenMatrix& matrix, int index, int slices) {
  const bool by_outputs = matrix.is_column_parallel;
  const auto part =
      lockstep::TensorPart::slice({matrix.outputs, matrix.inputs}, by_outputs ? 0 : 1, index, slices, matrix.parts);
  if (!by_outputs) return {{part.first, matrix.inputs / slices}};
  std::vector<SeenRange> ranges;
  for (std::int64_t k = 0; k < part.runs(); ++k) {
    const auto [first, count] = part.run_at(k);
    ranges.push_back({first / matrix.inputs, count / matrix.inputs});
  }
  return ranges;
}

// The ranges of several slices, with neighbours joined.
std::vector<SeenRange> of_rank(const SeenTensor& seen, const SeenMatrix& matrix, int rank) {
  std::vector<SeenRange> all;
  for (int j = rank * seen.local(); j < (rank + 1) * seen.local(); ++j) {
    const auto& own = matrix.of_slices[static_cast<std::size_t>(j)];
    all.insert(all.end(), own.begin(), own.end());
  }
  std::ranges::sort(all, {}, &SeenRange::first);
  std::vector<SeenRange> joined;
  for (const SeenRange& each : all) {
    if (!joined.empty() && joined.back().first + joined.back().count == each.first)
      joined.back().count += each.count;
    else
      joined.push_back(each);
  }
  return joined;
}

std::string range_text(const std::vector<SeenRange>& ranges) {
  std::vector<std::string> texts;
  for (const auto& [first, count] : ranges) texts.push_back(fmt::format("{}-{}", first, first + count - 1));
  return fmt::format("{}", fmt::join(texts, " "));
}

// "0-3"
std::string numbers_text(std::int64_t first, std::int64_t count) {
  return count == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, first + count - 1);
}

lockstep::Tensor sum_of(std::vector<lockstep::Tensor> terms) {
  const par::TensorSlices slices{nullptr, static_cast<int>(terms.size())};
  return par::sum_over_slices(slices, std::move(terms), par::Phase::kOther, "");
}

// 1 + 1/2 + ... + 1/kTerms. The numbers of a slice are added one after another, then the slices of each rank, then the
// sums of the ranks.
float sum_with(int slices, int ranks) {
  std::vector<lockstep::Tensor> of_ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<lockstep::Tensor> terms;
    for (int j = rank * slices / ranks; j < (rank + 1) * slices / ranks; ++j) {
      float sum = 0;
      for (int i = j * kTerms / slices; i < (j + 1) * kTerms / slices; ++i) sum += 1.0F / static_cast<float>(i + 1);
      terms.push_back(lockstep::tensor(std::vector<float>{sum}));
    }
    of_ranks.push_back(sum_of(std::move(terms)));
  }
  return sum_of(std::move(of_ranks)).item<float>();
}

SeenSum seen_sum(int slices) {
  SeenSum sum{.slices = slices, .ranks = ranks_for(slices), .value = sum_with(slices, 1)};
  for (const int ranks : sum.ranks) {
    if (sum_with(slices, ranks) != sum.value)
      throw lockstep::Error(
          fmt::format("tensor: {} ranks add {} slices in another order than one rank", ranks, slices));
  }
  return sum;
}

std::string matrices_text(const SeenTensor& seen) {
  std::string text =
      "\nMatrices W of the block, as x W: column-parallel ones are cut into columns, the others into rows\n";
  std::vector<std::vector<std::string>> rows = {{"rank", "slices", "heads"}};
  for (const SeenMatrix& each : seen.matrices)
    rows[0].push_back(fmt::format("{}: {} of {}", each.name, each.is_column_parallel ? "columns" : "rows",
                                  each.is_column_parallel ? each.outputs : each.inputs));
  const std::int64_t heads = seen.question.heads / seen.question.ranks;
  for (int rank = 0; rank < seen.question.ranks; ++rank) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {fmt::format("{}", rank), numbers_text(rank * seen.local(), seen.local()), numbers_text(rank * heads, heads)};
    for (const SeenMatrix& each : seen.matrices) row.push_back(range_text(of_rank(seen, each, rank)));
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i < 3 ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text + fmt::format("A rank has {} of the {} numbers of these matrices, and all of the norms.\n",
                            seen.parameters() / seen.question.ranks, seen.parameters());
}

std::string messages_text(const SeenTensor& seen) {
  const TensorQuestion& q = seen.question;
  return fmt::format(
      "\nMessages, with t = {0}, for a micro-batch of b = {1} sequences of s = {2} positions, width h = {3}\n"
      "forward   qkv, attention  nothing: each rank has whole heads\n"
      "          after proj      all-reduce: the sum of the outputs over all slices\n"
      "          up, gelu        nothing: each rank has some columns\n"
      "          after down      all-reduce: the sum of the outputs over all slices\n"
      "backward  before up       all-reduce: the sum of the gradients of its input over all slices\n"
      "          before qkv      all-reduce: the same\n"
      "Each all-reduce is of b s h = {4} numbers. A rank sends 2 (t-1)/t b s h = {5} of them,\n"
      "in the block 8 (t-1)/t b s h = {6} numbers: {7} bytes in f32.\n"
      "A bias of proj or down is added once, after the sum: each rank has all of it.\n",
      q.ranks, q.sequences, q.positions, q.width, seen.activation(), seen.sent(), 4 * seen.sent(), 16 * seen.sent());
}

std::string sums_text(const SeenTensor& seen) {
  const int local = seen.local(), ranks = seen.question.ranks;
  std::string text = fmt::format(
      "\nThe order of each sum over {} slice{}: pairs of neighbours, then pairs of pairs, and so on\n  {}\n",
      seen.question.slices, seen.question.slices == 1 ? "" : "s", sum_expression(0, seen.question.slices));
  if (local > 1) {
    for (int rank = 0; rank < ranks; ++rank)
      text += fmt::format("rank {:>2} adds     {}\n", rank, sum_expression(rank * local, local));
  }
  if (ranks > 1)
    text += fmt::format("all-reduce adds  {}\n", local > 1 ? fmt::format("the sums of the {} ranks, likewise", ranks)
                                                           : "the slices in this order");
  text += fmt::format(
      "\n1 + 1/2 + 1/3 + ... + 1/{} in f32: the numbers of a slice one after another, then the slices\n"
      "slices  sum         on this many ranks, with equal bits\n",
      kTerms);
  for (const SeenSum& sum : seen.sums)
    text += fmt::format("{:>6}  {:<10.9g}  {}\n", sum.slices, sum.value, fmt::join(sum.ranks, " "));
  return text +
         "Another number of slices is another order of additions, with another rounding. Ranks that share\n"
         "the slices only divide these additions among themselves.\n";
}

}  // namespace

std::string sum_expression(int first, int of) {
  if (of == 1) return fmt::format("s{}", first);
  const int left =
      static_cast<int>(std::bit_ceil(static_cast<unsigned>(of)) / 2);  // pairs of neighbours, from the left
  const auto bracketed = [](const std::string& text, int count) { return count > 1 ? "(" + text + ")" : text; };
  return fmt::format("{} + {}", bracketed(sum_expression(first, left), left),
                     bracketed(sum_expression(first + left, of - left), of - left));
}

SeenTensor tensor_of(const TensorQuestion& question) {
  check(question);
  const std::int64_t h = question.width;
  SeenTensor seen{.question = question,
                  .matrices = {{"qkv", true, h, 3 * h, 3, {}},
                               {"proj", false, h, h, 1, {}},
                               {"up", true, h, 4 * h, 1, {}},
                               {"down", false, 4 * h, h, 1, {}}},
                  .sums = {}};
  for (SeenMatrix& matrix : seen.matrices) {
    for (int j = 0; j < question.slices; ++j) matrix.of_slices.push_back(ranges_of(matrix, j, question.slices));
  }
  std::vector<int> slices = {1, 2, 4, 8, question.slices};
  std::ranges::sort(slices);
  slices.erase(std::unique(slices.begin(), slices.end()), slices.end());
  for (const int each : slices) seen.sums.push_back(seen_sum(each));
  return seen;
}

std::string tensor_text(const SeenTensor& seen) {
  const TensorQuestion& q = seen.question;
  return fmt::format(
             "tensor parallelism: {} slice{} on {} rank{}; a transformer block of width {} with {} heads\n"
             "All ranks have the same input. From a column-parallel matrix to a row-parallel one, a rank has\n"
             "the columns of its slices alone.\n",
             q.slices, q.slices == 1 ? "" : "s", q.ranks, q.ranks == 1 ? "" : "s", q.width, q.heads) +
         matrices_text(seen) + messages_text(seen) + sums_text(seen);
}
