// Exercise 13: a rank's columns, values and gradients of an MLP that is divided over the ranks, its bytes, and the bits of
// sums over slices. A wrong result is compared with those of common mistakes, so that the message can name the mistake.
#include <algorithm>
#include <cmath>

#include "harness.h"

namespace grader {
namespace {

using exercises::MlpGradients;
using exercises::MlpSlices;

constexpr double kError = 1e-9;  // relative to the largest element

struct Variant {
  std::int64_t heads = 4, dim = 4, samples = 3, columns = 8;  // columns: of the MLP, on each of 4 ranks
  std::int64_t width() const { return heads * dim; }
};

Variant variant() {
  if (seed_of() == 0) return {};
  Dice dice(seed_of());
  return {.heads = 4 * (1 + dice.roll(3)),
          .dim = 4 * (1 + dice.roll(3)),
          .samples = 2 + dice.roll(5),
          .columns = 4 + dice.roll(9)};
}

ls::Tensor numbers(const ls::Shape& shape, double step) {
  return ls::sin(ls::arange(shape.numel(), {.dtype = ls::kFloat64}) * step + step).reshape(shape);
}

// --- columns ---------------------------------------------------------------------------------------------------------
const char* const kParts[] = {"queries", "keys", "values"};

std::string meaning_of(const std::vector<std::int64_t>& have, int rank, int size) {
  const Variant v = variant();
  const std::int64_t width = v.width(), own = 3 * width / size;
  bool is_consecutive = true;
  for (std::int64_t i = 0; i < own; ++i)
    is_consecutive = is_consecutive && have[static_cast<std::size_t>(i)] == rank * own + i;
  if (is_consecutive)
    return "These are consecutive columns of the whole matrix: rank 0 has most queries, and the last rank has values "
           "alone. Cut queries, keys and values one by one, and place the three results side by side";
  std::vector<std::vector<std::int64_t>> heads(3);  // that the rank has, of each part
  for (std::int64_t part = 0; part < 3; ++part) {
    for (std::int64_t head = 0; head < v.heads; ++head) {
      std::int64_t count = 0;
      for (const std::int64_t column : have) count += column / width == part && column % width / v.dim == head;
      if (count > 0 && count < v.dim)
        return text("Head ", head, " of the ", kParts[part], " is cut: the rank has ", count, " of its ", v.dim,
                    " columns. A score is a sum over all columns of a head, so the rank needs whole heads");
      if (count > 0) heads[static_cast<std::size_t>(part)].push_back(head);
    }
  }
  if (heads[0] != heads[1] || heads[0] != heads[2])
    return "The rank has other heads of the keys or values than of the queries: a head needs all three";
  return text("The order is: heads ", rank * v.heads / size, " to ", (rank + 1) * v.heads / size - 1,
              " of the queries, then of the keys, then of the values");
}

std::string check_columns() {
  const Variant v = variant();
  const std::int64_t width = v.width();
  // Each element is the number of its column.
  const ls::Tensor whole = ls::arange(3 * width, {.dtype = ls::kFloat64}).expand({width, 3 * width}).contiguous();
  for (const int size : {1, 2, 4}) {
    for (int rank = 0; rank < size; ++rank) {
      const std::int64_t own = width / size;
      const ls::Tensor have = exercises::columns_of_rank(whole, v.heads, rank, size);
      const std::string where = text(size, " ranks, rank ", rank, ": ");
      require(have.defined() && have.shape() == ls::Shape{width, 3 * own}, where, "expected a tensor ",
              ls::Shape{width, 3 * own}.to_string());
      std::vector<ls::Tensor> parts;
      for (int part = 0; part < 3; ++part) parts.push_back(whole.narrow(1, part * width + rank * own, own));
      if (ls::equal(have, ls::cat(parts, 1))) continue;
      std::vector<std::int64_t> columns;
      for (const double each : have.select(0, 0).contiguous().to_vector<double>())
        columns.push_back(static_cast<std::int64_t>(each));
      throw Missing(where + meaning_of(columns, rank, size));
    }
  }
  return text(v.heads, " heads of ", v.dim, " columns on 1, 2 and 4 ranks");
}

// --- the MLP ---------------------------------------------------------------------------------------------------------
// Whole matrices, the same in every run.
struct Case {
  int size = 0;  // number of ranks
  std::int64_t width = variant().width(), columns = 4 * variant().columns;
  ls::Tensor x = numbers({variant().samples, width}, 1.3), grad = numbers({variant().samples, width}, 0.7);
  MlpSlices mlp = {.up = numbers({width, columns}, 1.1),
                   .up_bias = numbers({columns}, 0.9),
                   .down = numbers({columns, width}, 1.7),
                   .down_bias = numbers({width}, 0.4)};

  explicit Case(int ranks) : size(ranks) {}
  ls::Tensor part(const ls::Tensor& whole, int dim, int rank) const {
    const std::int64_t own = columns / size;
    return whole.narrow(dim, rank * own, own).contiguous();
  }
  MlpSlices of_rank(int rank) const {
    return {.up = part(mlp.up, 1, rank),
            .up_bias = part(mlp.up_bias, 0, rank),
            .down = part(mlp.down, 0, rank),
            .down_bias = mlp.down_bias.clone()};
  }
  ls::Tensor term(int rank) const {  // of the result, without a bias
    const MlpSlices own = of_rank(rank);
    return ls::matmul(ls::relu(ls::matmul(x, own.up) + own.up_bias), own.down);
  }
  MlpGradients gradients(const MlpSlices& of) const {
    const ls::Tensor before = ls::matmul(x, of.up) + of.up_bias;
    const ls::Tensor of_hidden = ls::where(before > 0, ls::matmul(grad, of.down.transpose(0, 1)), 0.0);
    return {.x = ls::matmul(of_hidden, of.up.transpose(0, 1)),
            .up = ls::matmul(x.transpose(0, 1), of_hidden),
            .up_bias = of_hidden.sum({0}),
            .down = ls::matmul(ls::relu(before).transpose(0, 1), grad),
            .down_bias = grad.sum({0})};
  }
};

bool is_close(const ls::Tensor& have, const ls::Tensor& want) {
  return (ls::abs(have - want).max() / ls::abs(want).max()).item<double>() <= kError;  // false if it is NaN
}

void require_shape(const ls::Tensor& have, const ls::Tensor& want, const std::string& where) {
  require(have.defined() && have.shape() == want.shape() && have.dtype() == want.dtype(), where, "expected a tensor ",
          want.shape().to_string(), " f64");
}

std::string meaning_of_result(const Case& c, int rank, const ls::Tensor& have) {
  ls::Tensor sum = c.term(0);
  for (int r = 1; r < c.size; ++r) sum = sum + c.term(r);
  const ls::Tensor own = c.term(rank), &bias = c.mlp.down_bias;
  if (is_close(have, sum + bias * static_cast<double>(c.size)))
    return text("The bias of down is added ", c.size,
                " times, once on every rank: it is whole there. Add it after the all-reduce");
  if (is_close(have, sum)) return "The bias of down is missing: add it after the all-reduce";
  if (is_close(have, own + bias) || is_close(have, own))
    return "This is the term of the rank's own rows of down: the result is the sum of the terms of all ranks";
  if (is_close(have, sum / static_cast<double>(c.size) + bias) ||
      is_close(have, (sum + bias) / static_cast<double>(c.size)) || is_close(have, sum / static_cast<double>(c.size)))
    return "The terms are averaged: their sum is the result, not their mean";
  return "This is none of the common mistakes: calculate a small case by hand, 2 ranks with 1 column each";
}

std::string check_forward() {
  for (const int size : {2, 4}) {
    const Case c(size);
    const ls::Tensor want =
        ls::matmul(ls::relu(ls::matmul(c.x, c.mlp.up) + c.mlp.up_bias), c.mlp.down) + c.mlp.down_bias;
    run_ranks(size, [&](const Group& group) {
      const int rank = group->rank();
      const std::string where = text(size, " ranks, rank ", rank, ": ");
      const MlpSlices own = c.of_rank(rank);
      const ls::Tensor have = exercises::mlp_forward(c.x.clone(), own, *group);
      group->barrier();
      require_shape(have, want, where);
      require(ls::equal(own.down_bias, c.mlp.down_bias), where, "down_bias has changed");
      if (!is_close(have, want)) throw Missing(where + meaning_of_result(c, rank, have));
    });
  }
  return text("within ", kError, " of one rank with whole matrices");
}

std::string meaning_of_gradient(const Case& c, const std::string& name, const ls::Tensor& have,
                                const ls::Tensor& want) {
  const auto size = static_cast<double>(c.size);
  const std::string subject = text("The gradient of ", name, " is ");
  const bool is_whole = name == "down_bias";
  if (is_close(have, want * size))
    return text(subject, c.size, " times too large: ",
                is_whole ? "the gradient of the result is whole on every rank, so do not sum what is computed from it"
                         : "the rank's slice is used on this rank alone, so its gradient is not summed");
  if (is_close(have, want / size)) return text(subject, "divided by the number of ranks: do not take a mean");
  if (is_whole) return text(subject, "wrong, expected grad.sum({0})");
  return text(
      subject,
      "wrong. Where x up + up_bias is negative, relu has the derivative 0; the gradient of a slice is not summed "
      "over the ranks");
}

std::string check_input_gradient() {
  for (const int size : {2, 4}) {
    const Case c(size);
    const ls::Tensor want = c.gradients(c.mlp).x;
    run_ranks(size, [&](const Group& group) {
      const int rank = group->rank();
      const std::string where = text(size, " ranks, rank ", rank, ": ");
      const ls::Tensor have = exercises::mlp_backward(c.grad.clone(), c.x.clone(), c.of_rank(rank), *group).x;
      group->barrier();
      require_shape(have, want, where + "the gradient of x: ");
      const ls::Tensor own = c.gradients(c.of_rank(rank)).x;
      require(!is_close(have, own), where,
              "The gradient of x is wrong. This is the term of the rank's own columns of up, ",
              "but x goes into the columns of all ranks: sum the terms of all ranks");
      require(!is_close(have, want / static_cast<double>(size)), where,
              "The gradient of x is the mean of the ranks' terms: it is their sum");
      require(is_close(have, want), where,
              "The gradient of x is wrong. Where x up + up_bias is negative, relu has the ",
              "derivative 0; then of_hidden up^T is the term of this rank");
    });
  }
  return "the sum over the columns of all ranks";
}

std::string check_slice_gradients() {
  for (const int size : {2, 4}) {
    const Case c(size);
    run_ranks(size, [&](const Group& group) {
      const int rank = group->rank();
      const std::string where = text(size, " ranks, rank ", rank, ": ");
      const MlpGradients have = exercises::mlp_backward(c.grad.clone(), c.x.clone(), c.of_rank(rank), *group),
                         want = c.gradients(c.of_rank(rank));
      group->barrier();
      const std::pair<const char*, ls::Tensor MlpGradients::*> all[] = {{"up", &MlpGradients::up},
                                                                        {"up_bias", &MlpGradients::up_bias},
                                                                        {"down", &MlpGradients::down},
                                                                        {"down_bias", &MlpGradients::down_bias}};
      for (const auto& [name, member] : all) {
        require_shape(have.*member, want.*member, text(where, "the gradient of ", name, ": "));
        if (!is_close(have.*member, want.*member))
          throw Missing(where + meaning_of_gradient(c, name, have.*member, want.*member));
      }
    });
  }
  return "of up, down and both biases";
}

// --- bytes -----------------------------------------------------------------------------------------------------------
std::string check_bytes() {
  std::int64_t bytes = 0;
  for (const int size : {2, 4}) {
    const Case c(size);
    Links forward, backward, one;
    run_ranks(size, [&](const Group& group) {
      const MlpSlices own = c.of_rank(group->rank());
      const auto add_to = [&](Links& links, auto call) {
        group->barrier();
        group->traffic().begin_step();
        call();
        add_step(links, group->traffic());
      };
      add_to(forward, [&] { exercises::mlp_forward(c.x.clone(), own, *group); });
      add_to(backward, [&] { exercises::mlp_backward(c.grad.clone(), c.x.clone(), own, *group); });
      add_to(one, [&] { group->all_reduce(c.x.clone())->wait(); });
    });
    for (int rank = 0; rank < size; ++rank) {
      bytes = sent_by(one, rank).bytes;
      for (const bool is_forward : {true, false}) {
        const std::int64_t have = sent_by(is_forward ? forward : backward, rank).bytes;
        require(have == bytes, size, " ranks: rank ", rank, " sent ", have, " bytes in ",
                is_forward ? "forward" : "backward", ", expected ", bytes, ", those of one all-reduce of ",
                variant().samples, " x ", c.width, " numbers. ",
                have > bytes ? "Sum only what is whole on every rank and has a term of each"
                             : "The result is whole on every rank, and has a term of each: sum it by one all-reduce");
      }
    }
  }
  return text(bytes, " bytes of each of 4 ranks in forward, as many in backward");
}

// --- bits ------------------------------------------------------------------------------------------------------------
constexpr int kSlices = 8;

std::vector<ls::Tensor> terms_of(int rank, int size) {
  std::vector<ls::Tensor> terms;
  for (int slice = rank * kSlices / size; slice < (rank + 1) * kSlices / size; ++slice)
    terms.push_back((numbers({64}, 1.1 + slice) * (1 + slice)).to(ls::kFloat32));
  return terms;
}

ls::Tensor by_pairs(std::vector<ls::Tensor> terms) {
  while (terms.size() > 1) {
    std::vector<ls::Tensor> pairs;
    for (std::size_t i = 0; i < terms.size(); i += 2) pairs.push_back(terms[i] + terms[i + 1]);
    terms = pairs;
  }
  return terms[0];
}

ls::Tensor one_by_one(const std::vector<ls::Tensor>& terms) {
  ls::Tensor sum = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) sum = sum + terms[i];
  return sum;
}

std::string check_bits() {
  const ls::Tensor want = by_pairs(terms_of(0, 1));
  for (const int size : {1, 2, 4, 8}) {
    std::vector<ls::Tensor> in_a_row;
    for (int rank = 0; rank < size; ++rank) in_a_row.push_back(one_by_one(terms_of(rank, size)));
    run_ranks(size, [&](const Group& group) {
      const std::vector<ls::Tensor> terms = terms_of(group->rank(), size), before = terms_of(group->rank(), size);
      const ls::Tensor have = exercises::sum_over_slices(terms, *group);
      group->barrier();
      const std::string where = text(kSlices, " slices on ", size, size == 1 ? " rank" : " ranks", ": ");
      require(have.defined() && have.shape() == want.shape() && have.dtype() == want.dtype(), where,
              "expected a tensor ", want.shape().to_string(), " f32");
      for (std::size_t i = 0; i < terms.size(); ++i)
        require(ls::equal(terms[i], before[i]), where,
                "a term has changed. all_reduce writes to its tensor: pass a copy");
      if (ls::equal(have, want)) return;
      require(!ls::equal(have, by_pairs(in_a_row)), where, "The terms of a rank are added one after another, which is ",
              "another order on every number of ranks. Add pairs of neighbours, then pairs of pairs, and so on");
      const double off = (ls::abs(have - want).max() / ls::abs(want).max()).item<double>();
      throw Missing(text(where, off < 1e-5 ? "The sum has other bits: this is another order of additions"
                                           : "This is not the sum of the terms of all ranks"));
    });
  }
  return text("equal for ", kSlices, " slices on 1, 2, 4 and 8 ranks");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const Variant v = variant();
  print_task(text(v.heads, " heads of ", v.dim, " columns; an MLP of width ", v.width(), " with ", 4 * v.columns,
                  " columns; ", v.samples, " samples"));
  return {{"columns of heads", check_columns},
          {"forward: values", check_forward},
          {"gradient of the input", check_input_gradient},
          {"gradients of slices", check_slice_gradients},
          {"bytes", check_bytes},
          {"sum over slices: bits", check_bits}};
}

}  // namespace grader
