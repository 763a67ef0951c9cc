// Ring attention as an HTML page: the step of each pair of half blocks, and when each rank computes.
#include <fmt/format.h>

#include <algorithm>

#include "tools/explain.h"
#include "tools/explain_ring_attention.h"

namespace {

// Rows are half blocks of queries, columns half blocks of keys. Of a pair on the diagonal the mask leaves a triangle.
std::string pairs_figure(const SeenRing& ring) {
  constexpr std::size_t kSquare = 36, kLabels = 112, kTop = 74;
  const std::size_t count = ring.owners.size(), width = kLabels + count * kSquare + 2;
  std::string svg = fmt::format(
      "<figure>\n<svg viewBox='0 0 {0} {1}' style='max-width:{0}px;max-height:none' role='img' aria-label='step of "
      "each "
      "pair of half blocks'>\n<text x='4' y='20'>keys of rank</text><text x='4' y='44'>half block</text>"
      "<text x='4' y='{2}'>queries of</text>\n",
      width, kTop + count * kSquare + 2, kTop - 8);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = kTop + i * kSquare, middle = kSquare / 2;
    svg += fmt::format(
        "<text class='c' x='{0}' y='20'>{1}</text><text class='c' x='{0}' y='44'>{2}</text>"
        "<text x='4' y='{3}'>rank {1}</text><text class='c' x='{4}' y='{3}'>{2}</text>\n",
        kLabels + i * kSquare + middle, ring.owners[i], i, at + middle + 5, kLabels - 20);
    for (std::size_t k = 0; k < count; ++k) {
      const SeenPair& pair = ring.pairs[i][k];
      const std::size_t x = kLabels + k * kSquare;
      svg +=
          fmt::format("<rect class='cell' x='{}' y='{}' width='{}' height='{}' fill='none'/>", x, at, kSquare, kSquare);
      if (pair.step == 0) continue;
      svg += fmt::format(
          "<path d='M{} {}{}V{}H{}z' fill='{}'><title>half block {} of queries, half block {} of keys: rank {}, step "
          "{}</title></path><text class='c' x='{}' y='{}' style='fill:#111'>{}</text>\n",
          x + 1, at + 1,
          pair.is_half ? fmt::format("L{} {}", x + kSquare - 1, at + kSquare - 1) : fmt::format("H{}", x + kSquare - 1),
          at + kSquare - 1, x + 1, colour_of(static_cast<std::size_t>(pair.step - 1), ring.slowest.size()), i, k,
          ring.owners[i], pair.step, x + (pair.is_half ? kSquare / 3 : kSquare / 2),
          at + (pair.is_half ? kSquare - 6 : kSquare / 2 + 5), pair.step);
    }
  }
  return svg + "</svg></figure>\n";
}

// A row for each rank. Each step is as wide as its slowest rank, and coloured while the rank computes.
std::string time_figure(const SeenRing& ring) {
  constexpr std::int64_t kHeight = 26, kLabels = 54, kWidth = 400;
  const auto ranks = static_cast<std::int64_t>(ring.steps.size());
  const std::int64_t unit = std::max<std::int64_t>(kWidth / (4 * ranks), 13);  // room for a label of two digits
  const std::int64_t width = kLabels + 4 * ranks * unit, height = ranks * kHeight;
  std::string svg = fmt::format(
      "<figure>\n<svg viewBox='0 0 {0} {1}' style='max-width:{0}px' role='img' aria-label='work of each rank, {2}'>\n",
      width, height, ring_name(ring.question));
  for (std::int64_t r = 0; r < ranks; ++r) {
    svg += fmt::format("<text x='4' y='{}'>rank {}</text>\n", r * kHeight + 18, r);
    std::int64_t x = kLabels;
    for (std::size_t s = 0; s < ring.slowest.size(); ++s) {
      const std::int64_t work = ring.steps[static_cast<std::size_t>(r)][s].work;
      svg += fmt::format(
          "<rect x='{0}' y='{1}' width='{2}' height='{3}' fill='{4}'><title>step {5}: {6}</title></rect>"
          "<rect class='cell' x='{0}' y='{1}' width='{7}' height='{3}' fill='none'/>\n",
          x, r * kHeight + 2, work * unit, kHeight - 4, colour_of(s, ring.slowest.size()), s + 1, work,
          ring.slowest[s] * unit);
      if (work > 0)
        svg += fmt::format("<text class='c' x='{}' y='{}' style='fill:#111'>{}</text>\n", x + work * unit / 2,
                           r * kHeight + 18, s + 1);
      x += ring.slowest[s] * unit;
    }
  }
  return svg + "</svg></figure>\n";
}

}  // namespace

std::string ring_html(const SeenRing& ring) {
  const RingAttentionQuestion& question = ring.question;
  const std::string title = fmt::format("Ring attention ({}): {} ranks, {}", ring_name(question), question.ranks,
                                        question.no_causal ? "no mask" : "causal mask");
  std::string body = fmt::format(
      "<h1>{}</h1>\n<h2>Pairs of half blocks</h2>\n<p>Rows are half blocks of queries, columns half blocks of keys. "
      "The "
      "number and the colour are the step in which the rank of the row computes the pair.</p>\n{}<h2>Time</h2>\n"
      "<p>Each step lasts as long as its slowest rank. A box is coloured while the rank computes.</p>\n",
      title, pairs_figure(ring));
  for (const bool plain : {question.plain, !question.plain}) {
    RingAttentionQuestion each = question;
    each.plain = plain;
    const SeenRing of_kind = ring_of(each);
    body += fmt::format("<h3>{}: the time of {} pairs of half blocks</h3>\n{}", ring_name(each), of_kind.time(),
                        time_figure(of_kind));
  }
  return html_page(title, body + fmt::format("<h2>All numbers</h2>\n<pre>{}</pre>\n", escape_html(ring_text(ring))));
}
