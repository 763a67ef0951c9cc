// An all_reduce as an HTML page: a figure for each step, with the contents of every rank and the messages between
// ranks.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>

#include "lockstep/tensor/error.h"
#include "tools/explain.h"

namespace par = lockstep::parallel;

namespace {

constexpr double kCell = 64, kRow = 46, kLeft = 70, kTop = 34;

// Without scripts the page shows all steps; with scripts one at a time, selected with the arrow keys.
constexpr const char* kSteps = R"(
const steps = [...document.querySelectorAll('figure')], bar = document.getElementById('bar');
let now = 0;
function show(n) {
  now = Math.max(0, Math.min(steps.length - 1, n));
  steps.forEach((s, i) => s.hidden = i !== now);
  bar.value = now;
}
bar.max = steps.length - 1;
bar.parentElement.hidden = false;
bar.addEventListener('input', () => show(+bar.value));
document.addEventListener('keydown', e => {
  if (e.target === bar) return;
  if (e.key === 'ArrowRight') show(now + 1);
  if (e.key === 'ArrowLeft') show(now - 1);
});
show(0);
)";

// The colour of a cell, from white (one rank contributed) to blue (all ranks contributed).
std::string colour(std::uint64_t set, int ranks) {
  const double share = ranks > 1 ? (std::popcount(set) - 1.0) / (ranks - 1) : 1;
  return fmt::format("rgb({:.0f},{:.0f},{:.0f})", 255 - share * 169, 255 - share * 75, 255 - share * 22);
}

using Holdings = std::vector<std::vector<std::uint64_t>>;  // by rank and cell: the ranks that contributed

void take_step(const SeenAllReduce& seen, int step, Holdings& has) {
  const Holdings before = has;
  for (const SeenHop& each : seen.hops) {
    if (each.step != step) continue;
    for (std::size_t c = 0; c + 1 < seen.cells.size(); ++c) {
      if (seen.cells[c] < each.hop.begin || seen.cells[c] >= each.hop.end) continue;
      const auto from = static_cast<std::size_t>(each.hop.from), to = static_cast<std::size_t>(each.hop.to);
      has[to][c] = each.hop.adds ? has[to][c] | before[from][c] : before[from][c];
    }
  }
}

std::string cells_svg(const SeenAllReduce& seen, const Holdings& has) {
  std::string svg;
  for (std::size_t c = 0; c + 1 < seen.cells.size(); ++c)
    svg += fmt::format("<text x='{}' y='20' class='c'>[{}, {})</text>\n",
                       kLeft + (static_cast<double>(c) + 0.5) * kCell, seen.cells[c], seen.cells[c + 1]);
  for (std::size_t r = 0; r < has.size(); ++r) {
    const double y = kTop + static_cast<double>(r) * kRow;
    svg += fmt::format("<text x='4' y='{}'>rank {}</text>\n", y + 20, r);
    for (std::size_t c = 0; c + 1 < seen.cells.size(); ++c) {
      const double x = kLeft + static_cast<double>(c) * kCell;
      const int all = seen.question.ranks, in = std::popcount(has[r][c]);
      svg += fmt::format(
          "<rect x='{}' y='{}' width='{}' height='30' fill='{}'><title>{}</title></rect>"
          "<text x='{}' y='{}' class='c'>{}</text>\n",
          x + 2, y, kCell - 4, colour(has[r][c], all), ranks_text(has[r][c]), x + kCell / 2, y + 20,
          in == all ? "all" : fmt::format("{} of {}", in, all));
    }
  }
  return svg;
}

// Draws each message as an arrow in the column of its elements, from the sender's row to the receiver's.
std::string arrows_svg(const SeenAllReduce& seen, int step) {
  std::string svg;
  for (const SeenHop& each : seen.hops) {
    if (each.step != step) continue;
    double first = 0, last = 0;
    for (std::size_t c = 0; c < seen.cells.size(); ++c) {
      if (seen.cells[c] == each.hop.begin) first = static_cast<double>(c);
      if (seen.cells[c] == each.hop.end) last = static_cast<double>(c);
    }
    const double x = kLeft + (first + last) / 2 * kCell;
    const bool is_down = each.hop.to > each.hop.from;
    const double y1 = kTop + each.hop.from * kRow + (is_down ? 30 : 0),
                 y2 = kTop + each.hop.to * kRow + (is_down ? 0 : 30);
    const double rows = std::abs(each.hop.to - each.hop.from);
    const double bow = x + (is_down ? 1 : -1) * kCell * std::min(0.4, 0.13 * (rows - 1));
    svg += fmt::format(
        "<path class='{}' d='M{} {} Q{} {} {} {}' marker-end='url(#head)'><title>rank {} to {}: [{}, {}), {} "
        "B</title></path>\n",
        each.hop.adds ? "adds" : "copies", x, y1, bow, (y1 + y2) / 2, x, y2, each.hop.from, each.hop.to, each.hop.begin,
        each.hop.end, (each.hop.end - each.hop.begin) * 4);
  }
  return svg;
}

std::string figure(const SeenAllReduce& seen, int step, const Holdings& has, const std::string& caption) {
  const double width = kLeft + static_cast<double>(seen.cells.size()) * kCell;
  const double height = kTop + static_cast<double>(seen.question.ranks) * kRow;
  return fmt::format(
      "<figure><figcaption>{}</figcaption>\n<svg role='img' viewBox='0 0 {} {}' width='{}'>\n"
      "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
      "orient='auto'><path d='M0 0L8 4L0 8z' fill='#d55e00'/></marker></defs>\n{}{}</svg></figure>\n",
      caption, width, height, width, cells_svg(seen, has), arrows_svg(seen, step));
}

}  // namespace

std::string as_html(const SeenAllReduce& seen) {
  const AllReduceQuestion& question = seen.question;
  Holdings has(static_cast<std::size_t>(question.ranks));
  for (std::size_t r = 0; r < has.size(); ++r) has[r].assign(seen.cells.size(), std::uint64_t{1} << r);
  std::string figures;
  for (int step = 0; step < seen.steps; ++step) {
    figures += figure(
        seen, step, has,
        fmt::format("Step {} of {}: what each rank holds, and what it sends. {}", step + 1, seen.steps,
                    step < seen.steps / 2 ? "The receiver combines it with its own." : "The receiver takes it over."));
    take_step(seen, step, has);
  }
  figures += figure(seen, seen.steps, has, "The end.");
  const std::string title = fmt::format("all_reduce by {}: {} ranks, {} elements", par::name(question.algorithm),
                                        question.ranks, question.elements);
  return html_page(
      title,
      fmt::format("<h1>{}</h1>\n<p>Columns are ranges of elements. The darker a cell, the more ranks' numbers are "
                  "in it.</p>\n<p hidden><input id='bar' type='range' min='0' value='0' aria-label='step'> arrow "
                  "keys: step by step</p>\n{}<h2>All messages</h2>\n<pre>{}</pre>\n",
                  title, figures, escape_html(as_text(seen))),
      kSteps);
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text)
    escaped += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '\'' ? "&#39;" : std::string(1, c);
  return escaped;
}

std::string html_page(const std::string& title, const std::string& body, const std::string& script) {
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'; style-src "
      "'unsafe-inline'\">\n<title>{}</title>\n<style>\n"
      "body {{ font: 15px system-ui, sans-serif; margin: 2em; max-width: 70em; color: #111; background: #fff }}\n"
      "svg {{ max-width: 100%; height: auto }} text {{ font: 13px system-ui, sans-serif }} .c {{ text-anchor: middle "
      "}}\n"
      "rect {{ stroke: #777 }} path.adds, path.copies {{ fill: none; stroke: #d55e00; stroke-width: 2 }}\n"
      "path.copies {{ stroke-dasharray: 5 3 }} figure {{ margin: 1em 0 }} table {{ border-collapse: collapse }}\n"
      "td, th {{ padding: 2px 10px; text-align: right }} polyline {{ fill: none; stroke-width: 2 }}\n"
      "</style></head><body>\n{}{}</body></html>\n",
      title, body, script.empty() ? "" : "<script>" + script + "</script>\n");
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw lockstep::IoError(fmt::format("{}: cannot be written", path));
}
