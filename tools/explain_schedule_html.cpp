// A pipeline schedule as an HTML page: what each rank computes, and the activations that it holds, over time.
#include <fmt/format.h>

#include <algorithm>

#include "tools/explain.h"
#include "tools/explain_schedule.h"

namespace par = lockstep::parallel;

namespace {

constexpr double kLabels = 54, kLane = 30, kAxis = 26;

struct ActionStyle {
  const char *name, *fill;
  double opacity;  // of the first chunk; later ones have more
};

// F and B in the two colours of all pages; I and W, the parts of B, in its colour and without one.
ActionStyle kind_of(par::ActionKind kind) {
  switch (kind) {
    case par::ActionKind::kForward:
      return {"forward", "var(--blue)", .3};
    case par::ActionKind::kBackwardInput:
      return {"gradients of inputs", "var(--red)", .3};
    case par::ActionKind::kBackwardWeight:
      return {"gradients of parameters", "var(--ink)", .15};
    default:
      return {"backward", "var(--red)", .3};
  }
}

double label_width(int micro_batch) { return 4 + 8 * static_cast<double>(fmt::formatted_size("{}", micro_batch)); }

// A time line with room for the label of each action, within limits.
struct Axis {
  explicit Axis(const SeenSchedule& seen) : seconds(seen.timeline.seconds) {
    double shortest = seconds;
    for (const par::Timeline::Rank& rank : seen.timeline.ranks)
      for (const auto& [begin, end, action] : rank.actions) shortest = std::min(shortest, end - begin);
    width = std::clamp(label_width(seen.table.micro_batches() - 1) * seconds / shortest, 400.0, 1000.0);
  }
  double x(double at) const { return kLabels + width * at / seconds; }

  double seconds, width;
};

// The start and the end of a figure with a row for each rank and an axis of time.
std::string figure(const SeenSchedule& seen, const Axis& axis, const std::string& label, const std::string& content) {
  const int ranks = seen.table.ranks();
  const double width = kLabels + axis.width + 20, height = ranks * kLane + kAxis;
  std::string svg = fmt::format(
      "<figure style='overflow-x:auto'>\n<svg viewBox='0 0 {0:.0f} {1:.0f}' "
      "style='min-width:{3:.0f}px;max-width:{0:.0f}px;max-height:none' role='img' "
      "aria-label='{2}'>\n",
      width, height, label, std::min(width, 720.0));
  for (int rank = 0; rank < ranks; ++rank)
    svg += fmt::format("<text x='4' y='{:.0f}'>rank {}</text>\n", rank * kLane + 20, rank);
  constexpr int kMarks = 6;
  for (int i = 0; i < kMarks; ++i) {
    const double seconds = seen.timeline.seconds * i / (kMarks - 1), x = axis.x(seconds);
    svg += fmt::format(
        "<line class='grid' x1='{0:.1f}' y1='0' x2='{0:.1f}' y2='{1:.1f}'/><text class='c' x='{0:.1f}' "
        "y='{2:.1f}'>{3}</text>\n",
        x, height - kAxis + 4, height - 6, seen.profile ? seen.time(seconds) : fmt::format("{:.4g}", seconds));
  }
  return svg + content + "</svg></figure>\n";
}

// The label is the micro-batch, where there is room.
std::string lanes_figure(const SeenSchedule& seen, const Axis& axis) {
  std::string boxes;
  const int ranks = seen.table.ranks(), chunks = seen.table.chunks();
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& [begin, end, action] : seen.timeline.ranks[static_cast<std::size_t>(rank)].actions) {
      const double x = axis.x(begin), width = axis.x(end) - x, y = rank * kLane + 2;
      const ActionStyle kind = kind_of(action.kind);
      const int chunk = action.stage / ranks;
      boxes += fmt::format(
          "<rect class='cell' x='{:.1f}' y='{:.0f}' width='{:.1f}' height='{:.0f}' fill='{}' fill-opacity='{:.2f}'>"
          "<title>{}: {} of stage {}, micro-batch {}, on rank {}: {} to {}</title></rect>",
          x, y, width, kLane - 4, kind.fill, kind.opacity + .4 * chunk / chunks, action.to_string(), kind.name,
          action.stage, action.micro_batch, rank, seen.time(begin), seen.time(end));
      const std::string label = fmt::format("{}", action.micro_batch);
      if (width >= label_width(action.micro_batch))
        boxes += fmt::format("<text class='c' x='{:.1f}' y='{:.0f}'>{}</text>\n", x + width / 2, y + 18, label);
    }
  }
  return figure(seen, axis, "what each rank computes over time", boxes);
}

// A step curve for each rank, all with one scale.
std::string held_figure(const SeenSchedule& seen, const Axis& axis) {
  int most = 1;
  for (const par::Timeline::Rank& rank : seen.timeline.ranks) most = std::max(most, rank.in_flight);
  std::string curves;
  for (int rank = 0; rank < seen.table.ranks(); ++rank) {
    const par::Timeline::Rank& own = seen.timeline.ranks[static_cast<std::size_t>(rank)];
    const double bottom = (rank + 1) * kLane - 2;
    std::string path = fmt::format("M{:.1f} {:.1f}", kLabels, bottom);
    for (std::size_t i = 0; i < own.held.size(); ++i) {
      const auto& [seconds, activations] = own.held[i];
      const bool changes_again = i + 1 < own.held.size() && own.held[i + 1].seconds == seconds;
      if (!changes_again)
        path += fmt::format("H{:.1f}V{:.1f}", axis.x(seconds), bottom - (kLane - 6) * activations / most);
    }
    curves += fmt::format(
        "<path class='ddp' fill-opacity='.35' d='{}z'><title>rank {} holds at most {}</title></path><text "
        "x='{:.0f}' y='{:.1f}'>{}</text>\n",
        path, rank, own.in_flight, kLabels + axis.width + 4, bottom - 6, own.in_flight);
  }
  return figure(seen, axis, "activations that each rank holds over time", curves);
}

// A box for each kind of action that the table has.
std::string legend(const SeenSchedule& seen) {
  std::string text;
  for (const par::ActionKind kind : {par::ActionKind::kForward, par::ActionKind::kBackward,
                                     par::ActionKind::kBackwardInput, par::ActionKind::kBackwardWeight}) {
    const bool is_there = std::ranges::any_of(seen.timeline.ranks, [&](const par::Timeline::Rank& rank) {
      return std::ranges::any_of(rank.actions, [&](const auto& each) { return each.action.kind == kind; });
    });
    if (!is_there) continue;
    const auto& [name, fill, opacity] = kind_of(kind);
    text += fmt::format(
        "<svg viewBox='0 0 20 14' style='width:20px;height:14px' aria-hidden='true'><rect class='cell' x='1' y='1' "
        "width='18' height='12' fill='{}' fill-opacity='{:.2f}'/></svg> {} &nbsp; ",
        fill, opacity, name);
  }
  return text;
}

}  // namespace

std::string schedule_html(const SeenSchedule& seen) {
  const Axis axis(seen);
  const std::string title = "Pipeline " + escape_html(schedule_title(seen));
  const char* const chunks = seen.table.chunks() > 1 ? " Later chunks of a rank have stronger colours." : "";
  return html_page(
      title, fmt::format("<h1>{}</h1>\n<p>A step takes {}; each rank computes for {} of it{}. Ranks are idle for "
                         "<b>{:.1f} %</b> of the step: the bubble.</p>\n<h2>What each rank computes</h2>\n<p>{}The "
                         "number is the micro-batch.{}</p>\n{}<h2>Activations that each rank holds</h2>\n<p>From the "
                         "start of a forward to the end of its backward{}. The number is the most.</p>\n{}<h2>All "
                         "numbers</h2>\n<pre>{}</pre>\n",
                         title, seen.time(seen.timeline.seconds), seen.time(seen.work()),
                         seen.profile ? " on average" : "", 100 * seen.timeline.idle, legend(seen), chunks,
                         lanes_figure(seen, axis), seen.table.chunks() > 1 ? "; each is of one chunk" : "",
                         held_figure(seen, axis), escape_html(schedule_text(seen))));
}
