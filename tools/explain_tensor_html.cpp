// Tensor parallelism as an HTML page: the slices of each matrix, forward and backward, and the tree of sums.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tools/explain.h"
#include "tools/explain_tensor.h"

namespace {

std::string rank_colour(const SeenTensor& seen, int rank) {
  return colour_of(static_cast<std::size_t>(rank), static_cast<std::size_t>(seen.question.ranks));
}

// A matrix with a row for each input and a column for each output. Slices have the colour of their rank.
std::string matrix_figure(const SeenTensor& seen, const SeenMatrix& matrix) {
  constexpr double kUnit = 110;  // of the width of the block
  const double scale = kUnit / static_cast<double>(seen.question.width),
               width = scale * static_cast<double>(matrix.outputs), height = scale * static_cast<double>(matrix.inputs);
  std::string svg = fmt::format(
      "<figure>\n<figcaption>{0}: {1} inputs, {2} outputs; {3}</figcaption>\n"
      "<svg viewBox='0 0 {4:.0f} {5:.0f}' style='max-width:{4:.0f}px;max-height:none' role='img' aria-label='slices of "
      "{0}'>\n",
      matrix.name, matrix.inputs, matrix.outputs,
      matrix.is_column_parallel ? "column-parallel: outputs are cut" : "row-parallel: inputs are cut", width + 2,
      height + 2);
  for (int j = 0; j < seen.question.slices; ++j) {
    const int rank = j / seen.local();
    for (const auto& [first, count] : matrix.of_slices[static_cast<std::size_t>(j)]) {
      const double from = 1 + scale * static_cast<double>(first), size = scale * static_cast<double>(count);
      const bool is_column = matrix.is_column_parallel;
      const double x = is_column ? from : 1, y = is_column ? 1 : from, w = is_column ? size : width,
                   h = is_column ? height : size;
      svg += fmt::format(
          "<rect class='cell' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='{}'><title>{}, slice {}: {} "
          "{} "
          "to {}, on rank {}</title></rect>",
          x, y, w, h, rank_colour(seen, rank), matrix.name, j, is_column ? "columns" : "rows", first, first + count - 1,
          rank);
      if (size >= 12)
        svg += fmt::format("<text class='c' x='{:.1f}' y='{:.1f}' style='fill:#111'>{}</text>\n", x + w / 2,
                           y + h / 2 + 5, j);
    }
  }
  return svg + "</svg></figure>\n";
}

// A row for each rank, with what it computes; an all-reduce joins the rows.
std::string order_figure(const SeenTensor& seen, bool is_backward) {
  constexpr int kHeight = 30, kLabels = 64, kWide = 92, kNarrow = 84;
  const std::pair<const char*, bool> forward[] = {
      {"norm", false}, {"qkv", false}, {"attention", false}, {"proj", false}, {"", true},
      {"norm", false}, {"up", false},  {"gelu", false},      {"down", false}, {"", true}};
  const std::pair<const char*, bool> backward[] = {
      {"down", false}, {"gelu", false},      {"up", false},  {"", true}, {"norm", false},
      {"proj", false}, {"attention", false}, {"qkv", false}, {"", true}, {"norm", false}};
  const int ranks = seen.question.ranks, height = ranks * kHeight + 24;
  std::string boxes;
  int x = kLabels;
  for (const auto& [name, is_sum] : is_backward ? backward : forward) {
    if (is_sum) {
      boxes += fmt::format(
          "<rect class='cell' x='{}' y='22' width='{}' height='{}' fill='var(--red)' fill-opacity='.3'><title>"
          "all-reduce of {} numbers; a rank sends {}</title></rect><text class='c' x='{}' y='16'>all-reduce</text>\n",
          x + 2, kNarrow - 4, ranks * kHeight, seen.activation(), seen.sent(), x + kNarrow / 2);
      x += kNarrow;
      continue;
    }
    const bool is_whole = name == std::string("norm");
    for (int rank = 0; rank < ranks; ++rank)
      boxes += fmt::format(
          "<rect class='cell' x='{}' y='{}' width='{}' height='{}' fill='{}'/><text class='c' x='{}' y='{}'{}>{}</text>"
          "\n",
          x + 2, 22 + rank * kHeight + 2, kWide - 4, kHeight - 4, is_whole ? "none" : rank_colour(seen, rank),
          x + kWide / 2, 22 + rank * kHeight + 20, is_whole ? "" : " style='fill:#111'", name);
    x += kWide;
  }
  std::string svg = fmt::format(
      "<figure>\n<svg viewBox='0 0 {0} {1}' style='max-width:{0}px;max-height:none' role='img' aria-label='order of "
      "{2}'"
      ">\n",
      x, height, is_backward ? "backward" : "forward");
  for (int rank = 0; rank < ranks; ++rank)
    svg += fmt::format("<text x='4' y='{}'>rank {}</text>\n", 22 + rank * kHeight + 20, rank);
  return svg + boxes + "</svg></figure>\n";
}

// The tree of a sum over the slices. A node has the colour of the rank that adds; those of the all-reduce have none.
class TreeFigure {
 public:
  explicit TreeFigure(const SeenTensor& seen) : seen_(seen) {}

  std::string svg() {
    const int slices = seen_.question.slices;
    node(0, slices);
    const int width = slices * kStep, height = (depth(slices) + 1) * kLevel;
    return fmt::format(
               "<figure>\n<svg viewBox='0 0 {0} {1}' style='max-width:{0}px;max-height:none' role='img' "
               "aria-label='tree "
               "of the sum over {2} slices'>\n",
               width, height, slices) +
           lines_ + nodes_ + "</svg></figure>\n";
  }

 private:
  static constexpr int kStep = 56, kLevel = 52;

  static int left_of(int count) {
    int left = 1;
    while (2 * left < count) left *= 2;
    return left;
  }
  static int depth(int count) {
    return count == 1 ? 0 : 1 + std::max(depth(left_of(count)), depth(count - left_of(count)));
  }
  // Draws the sum of `count` slices from `first` on. Returns its place.
  std::pair<double, double> node(int first, int count) {
    const double y = (depth(seen_.question.slices) - depth(count)) * kLevel + kLevel / 2.0;
    double x = (first + 0.5) * kStep;
    if (count > 1) {
      const int left = left_of(count);
      const auto a = node(first, left), b = node(first + left, count - left);
      x = (a.first + b.first) / 2;
      for (const auto& [to_x, to_y] : {a, b})
        lines_ += fmt::format("<path class='out' d='M{:.1f} {:.1f}L{:.1f} {:.1f}'/>", x, y, to_x, to_y);
    }
    const int rank = first / seen_.local();
    const bool is_of_rank = (first + count - 1) / seen_.local() == rank;
    nodes_ += fmt::format(
        "<circle cx='{:.1f}' cy='{:.1f}' r='16' fill='{}' stroke='var(--line)'><title>{}, {}</title></circle>"
        "<text class='c' x='{:.1f}' y='{:.1f}'{}>{}</text>\n",
        x, y, is_of_rank ? rank_colour(seen_, rank) : "var(--paper)", sum_expression(first, count),
        is_of_rank ? fmt::format("on rank {}", rank) : "by the all-reduce", x, y + 5,
        is_of_rank ? " style='fill:#111'" : "", count == 1 ? fmt::format("s{}", first) : "+");
    return {x, y};
  }

  const SeenTensor& seen_;
  std::string lines_, nodes_;
};

}  // namespace

std::string tensor_html(const SeenTensor& seen) {
  const TensorQuestion& q = seen.question;
  const std::string title = fmt::format("Tensor parallelism: {} slice{} on {} rank{}", q.slices,
                                        q.slices == 1 ? "" : "s", q.ranks, q.ranks == 1 ? "" : "s");
  std::string body = fmt::format(
      "<h1>{}</h1>\n<h2>Matrices of a transformer block</h2>\n<p>Rows are inputs, columns are outputs. The number is "
      "the "
      "slice, the colour its rank.</p>\n",
      title);
  for (const SeenMatrix& matrix : seen.matrices) body += matrix_figure(seen, matrix);
  body += fmt::format(
      "<h2>Forward</h2>\n<p>Coloured boxes work on the columns of one rank, the others on whole vectors, which all "
      "ranks "
      "compute alike. An all-reduce sums over all slices: of {} numbers each rank sends {}.</p>\n{}<h2>Backward</h2>\n"
      "<p>The gradient of the input of a column-parallel matrix is summed.</p>\n{}<h2>The order of a sum</h2>\n<p>The "
      "tree depends on the number of slices alone. The colour is the rank that adds; the all-reduce adds the "
      "rest.</p>\n"
      "{}",
      seen.activation(), seen.sent(), order_figure(seen, false), order_figure(seen, true), TreeFigure(seen).svg());
  return html_page(title, body + fmt::format("<h2>All numbers</h2>\n<pre>{}</pre>\n", escape_html(tensor_text(seen))));
}
