// A collective as an HTML page: a figure for each step, with the contents of every rank and the messages between
// ranks.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "lockstep/base/error.h"
#include "tools/explain.h"

namespace par = lockstep::parallel;

namespace {

constexpr double kCell = 60, kGap = 30, kRow = 50, kHigh = 34, kLeft = 54, kTop = 34, kTotal = 76;

// Without scripts the page shows all steps; with scripts one at a time.
constexpr const char* kSteps = R"(
const steps = [...document.querySelectorAll('figure')], find = (id) => document.getElementById(id), bar = find('bar');
let now = 0, timer = 0;
const list = steps.map((step, i) => {
  const button = document.createElement('button');
  button.textContent = i + 1 < steps.length ? i + 1 : 'end';
  button.addEventListener('click', () => { stop(); show(i); });
  find('list').append(button);
  return button;
});
function show(n) {
  now = Math.max(0, Math.min(steps.length - 1, n));
  steps.forEach((step, i) => step.hidden = i !== now);
  list.forEach((button, i) => button.setAttribute('aria-current', i === now ? 'step' : 'false'));
  bar.value = now;
  find('previous').disabled = now === 0;
  find('next').disabled = now + 1 === steps.length;
}
function stop() {
  clearInterval(timer);
  timer = 0;
  find('play').textContent = 'play';
}
function play() {
  if (timer) return stop();
  if (now + 1 === steps.length) show(0);
  find('play').textContent = 'pause';
  timer = setInterval(() => { show(now + 1); if (now + 1 === steps.length) stop(); }, 1500);
}
bar.max = steps.length - 1;
find('controls').hidden = false;
bar.addEventListener('input', () => { stop(); show(+bar.value); });
find('previous').addEventListener('click', () => { stop(); show(now - 1); });
find('next').addEventListener('click', () => { stop(); show(now + 1); });
find('play').addEventListener('click', play);
document.addEventListener('keydown', (e) => {
  if (e.target === bar || !['ArrowRight', 'ArrowLeft'].includes(e.key)) return;
  stop();
  show(now + (e.key === 'ArrowRight' ? 1 : -1));
});
show(0);
)";

constexpr const char* kControls =
    "<div id='controls' hidden>\n<p><button id='previous'>previous</button> <button id='play'>play</button> "
    "<button id='next'>next</button> <input id='bar' type='range' min='0' value='0' aria-label='step'></p>\n"
    "<p id='list' role='group' aria-label='steps'></p>\n</div>\n";

using Holdings = std::vector<std::vector<std::uint64_t>>;  // by rank and cell: the ranks that contributed

void take_step(const SeenCollective& seen, int step, Holdings& has) {
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

double cell_left(std::size_t cell) { return kLeft + static_cast<double>(cell) * (kCell + kGap); }
double row_top(int rank) { return kTop + rank * kRow; }

// One square for each rank, from rank 0 at the left: filled if the rank's numbers are in the cell.
std::string squares_svg(std::uint64_t set, int ranks, double x, double y) {
  const double pitch = std::min(13.0, (kCell - 8) / ranks), size = pitch - 2;
  double at = x + (kCell - pitch * ranks) / 2 + 1;
  std::string in, out;
  for (int r = 0; r < ranks; ++r, at += pitch)
    ((set >> r & 1) != 0 ? in : out) +=
        fmt::format("M{0:.1f} {1:.1f}h{2:.1f}v{2:.1f}h-{2:.1f}z", at, y + (kHigh - size) / 2, size);
  if (!in.empty()) in = fmt::format("<path class='in' d='{}'/>", in);
  if (!out.empty()) out = fmt::format("<path class='out' d='{}'/>", out);
  return in + out;
}

std::string cells_svg(const SeenCollective& seen, const Holdings& has, const std::vector<std::int64_t>& sent) {
  const int ranks = seen.question.ranks;
  std::string svg;
  for (std::size_t c = 0; c + 1 < seen.cells.size(); ++c)
    svg += fmt::format("<text x='{}' y='20' class='c'>[{}, {})</text>\n", cell_left(c) + kCell / 2, seen.cells[c],
                       seen.cells[c + 1]);
  const double right = cell_left(seen.cells.size() - 1);
  svg += fmt::format("<text x='{}' y='20'>sent so far</text>\n", right);
  for (int r = 0; r < ranks; ++r) {
    const auto rank = static_cast<std::size_t>(r);
    const double y = row_top(r);
    svg += fmt::format("<text x='4' y='{0}'>rank {1}</text><text x='{2}' y='{0}'>{3} B</text>\n", y + 22, r, right,
                       sent[rank]);
    for (std::size_t c = 0; c + 1 < seen.cells.size(); ++c) {
      const double share = ranks > 1 ? std::max(std::popcount(has[rank][c]) - 1.0, 0.0) / (ranks - 1) : 1;
      svg += fmt::format(
          "<g><title>{}</title><rect class='cell' x='{}' y='{}' width='{}' height='{}' fill='#3c8fc4' "
          "fill-opacity='{:.2f}'/>{}</g>\n",
          ranks_text(has[rank][c]), cell_left(c), y, kCell, kHigh, 0.6 * share,
          squares_svg(has[rank][c], ranks, cell_left(c), y));
    }
  }
  return svg;
}

// Draws each message as one arrow for each cell, in the gap to the right of the cell, where no text is.
std::string arrows_svg(const SeenCollective& seen, int step) {
  std::string svg;
  for (const SeenHop& each : seen.hops) {
    if (each.step != step) continue;
    const auto& hop = each.hop;
    const std::int64_t rows = std::abs(hop.to - hop.from);
    for (std::size_t c = 0; c + 1 < seen.cells.size(); ++c) {
      if (seen.cells[c] < hop.begin || seen.cells[c] >= hop.end) continue;
      const double x = cell_left(c) + kCell, y1 = row_top(hop.from) + kHigh / 2 + 4,
                   y2 = row_top(hop.to) + kHigh / 2 - 4;
      const double bow = x + kGap * std::min(1.9, 0.7 + 0.3 * static_cast<double>(rows));
      svg += fmt::format(
          "<path class='{}' d='M{} {} Q{:.1f} {} {} {}' marker-end='url(#head{})'><title>rank {} to {}: [{}, {}), {} "
          "B</title></path>\n",
          hop.adds ? "adds" : "copies", x, y1, bow, (y1 + y2) / 2, x + 1, y2, step, hop.from, hop.to, hop.begin,
          hop.end, (hop.end - hop.begin) * 4);
    }
  }
  return svg;
}

// Each figure has an arrow head of its own: a browser does not draw one that a hidden figure defines.
std::string figure(const SeenCollective& seen, int step, const Holdings& has, const std::vector<std::int64_t>& sent,
                   const std::string& caption) {
  const double width = cell_left(seen.cells.size() - 1) + kTotal;
  const double height = kTop + seen.question.ranks * kRow;
  return fmt::format(
      "<figure><figcaption>{}</figcaption>\n<svg role='img' aria-label='{}' viewBox='0 0 {} {}' width='{}'>\n"
      "<defs><marker id='head{}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
      "orient='auto'><path d='M0 0L8 4L0 8z' fill='#d55e00'/></marker></defs>\n{}{}</svg></figure>\n",
      caption, step < seen.steps ? fmt::format("step {}", step + 1) : "the end", width, height, width, step,
      cells_svg(seen, has, sent), arrows_svg(seen, step));
}

const char* end_of(const SeenCollective& seen) {
  return seen.question.collective == par::Collective::kReduceScatter ? "The end: rank r holds the result of part r."
                                                                     : "The end: every rank holds the result.";
}

}  // namespace

std::string as_html(const SeenCollective& seen) {
  const CollectiveQuestion& question = seen.question;
  Holdings has(static_cast<std::size_t>(question.ranks));
  for (std::size_t r = 0; r < has.size(); ++r) has[r] = held_at_first(seen, static_cast<int>(r));
  std::vector<std::int64_t> sent(has.size(), 0);
  std::string figures;
  for (int step = 0; step < seen.steps; ++step) {
    for (const SeenHop& each : seen.hops) {
      if (each.step == step) sent[static_cast<std::size_t>(each.hop.from)] += (each.hop.end - each.hop.begin) * 4;
    }
    const bool adds = step < seen.reduce_steps;
    figures += figure(seen, step, has, sent,
                      fmt::format("Step {} of {}: what each rank holds, and what it sends. {}", step + 1, seen.steps,
                                  adds ? "The receiver combines the message with its own numbers."
                                       : "The receiver stores the result."));
    take_step(seen, step, has);
  }
  figures += figure(seen, seen.steps, has, sent, end_of(seen));
  const std::string title = fmt::format("{} by {}: {} ranks, {} elements", par::name(question.collective),
                                        par::name(question.algorithm), question.ranks, question.elements);
  return html_page(
      title,
      fmt::format("<h1>{}</h1>\n<p>Columns are ranges of elements. A cell has one square for each rank, rank 0 at the "
                  "left: filled squares are the ranks whose numbers are in the cell.</p>\n{}{}<h2>All messages</h2>\n"
                  "<pre>{}</pre>\n",
                  title, kControls, figures, escape_html(as_text(seen))),
      kSteps);
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text)
    escaped += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '\'' ? "&#39;" : std::string(1, c);
  return escaped;
}

std::string colour_of(std::size_t index, std::size_t count) {
  constexpr const char* kColours[] = {"#8ccbf0", "#f2b950", "#7accac", "#f5ee8a",
                                      "#dda6c6", "#f3956a", "#84a9d8", "#c8c8c8"};
  return count <= std::size(kColours) ? kColours[index] : fmt::format("hsl({} 60% 75%)", 360 * index / count);
}

std::string html_page(const std::string& title, const std::string& body, const std::string& script) {
  constexpr const char* kStyle =
      ":root { color-scheme: light dark; --paper: #fff; --ink: #111; --line: #999; --blue: #0072b2; --red: #d55e00 }\n"
      "@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #ececec; --line: #777; --blue: #6db6ee; "
      "--red: #ff8a3d } }\n"
      "body { font: 16px/1.5 system-ui, sans-serif; margin: 1.5em; color: var(--ink); background: var(--paper) }\n"
      "svg { width: 100%; height: auto; max-height: 75vh } text { font: 13px system-ui, sans-serif; fill: var(--ink) "
      "}\n"
      ".c { text-anchor: middle } rect.cell, path.out { stroke: var(--line) } path.out { fill: none }\n"
      "path.in { fill: var(--ink); stroke: var(--ink) } path.adds, path.copies { fill: none; stroke: var(--red); "
      "stroke-width: 2 }\npath.copies { stroke-dasharray: 5 3 } figure { margin: 1em 0 } pre { overflow-x: auto }\n"
      "button { font: inherit; min-width: 2.5em } button[aria-current=step] { outline: 3px solid var(--ink) }\n"
      "#bar { width: min(40em, 60%) } table { border-collapse: collapse }\n"
      "td, th { padding: 2px 10px; text-align: right; border: 1px solid var(--line) }\n"
      "polyline { fill: none; stroke-width: 2 } .dp { stroke: var(--red); fill: var(--red) } .ddp { stroke: "
      "var(--blue); "
      "fill: var(--blue) }\npolyline.dp { stroke-dasharray: 6 3; fill: none } polyline.ddp { fill: none } .ideal { "
      "stroke: var(--ink); stroke-dasharray: 2 4 }\n.grid { stroke: var(--line); stroke-width: .5 } text.dp, text.ddp "
      "{ "
      "stroke: none }\n"
      "@media (max-width: 30rem) { body { margin: 1rem } td, th { padding: 2px 4px; font-size: .8rem } }\n";
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
      "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'; style-src "
      "'unsafe-inline'\">\n<title>{}</title>\n<style>\n{}</style></head><body>\n{}{}</body></html>\n",
      title, kStyle, body, script.empty() ? "" : "<script>" + script + "</script>\n");
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw lockstep::IoError(fmt::format("{}: cannot be written", path));
}
