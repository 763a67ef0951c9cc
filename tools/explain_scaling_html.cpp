// The prediction as an HTML page: curves of the speed-up, and a table with the efficiency.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/explain.h"
#include "tools/explain_scaling.h"

namespace {

constexpr double kWidth = 480, kHeight = 400, kLeft = 70, kTop = 20, kBottom = 60, kRight = 20;
constexpr double kBelow = 4;  // the axis starts at 1/16

// The axes: both are logarithmic, to the base 2.
struct Axes {
  double devices = 1, speed = 0;  // logarithms of the largest values

  double x(int ranks) const { return kLeft + std::log2(ranks) / devices * (kWidth - kLeft - kRight); }
  double y(double value) const {
    const double at = (std::log2(std::max(value, 1.0 / 16)) + kBelow) / (speed + kBelow);
    return kTop + (1 - at) * (kHeight - kBottom - kTop);
  }
};

std::string grid_svg(const Scaling& scaling, const Axes& axes) {
  std::string svg;
  for (double power = -kBelow; power <= axes.speed; ++power)
    svg += fmt::format(
        "<line class='grid' x1='{0}' x2='{1}' y1='{2:.1f}' y2='{2:.1f}'/><text x='26' y='{3:.1f}'>{4}{5:g}x</text>\n",
        kLeft, kWidth - kRight, axes.y(std::exp2(power)), axes.y(std::exp2(power)) + 4, power < 0 ? "1/" : "",
        std::exp2(std::abs(power)));
  for (const auto& step : scaling.steps)
    svg += fmt::format("<text class='c' x='{:.1f}' y='{}'>{}</text>\n", axes.x(step.ranks), kHeight - 40, step.ranks);
  const double middle = (kTop + kHeight - kBottom) / 2;
  return svg + fmt::format(
                   "<text class='c' x='{}' y='{}'>number of devices</text>\n"
                   "<text class='c' transform='translate(14 {}) rotate(-90)'>speed-up over one device</text>\n"
                   "<text x='{}' y='{:.1f}' text-anchor='end'>below 1x: slower than one device</text>\n",
                   (kLeft + kWidth) / 2, kHeight - 14, middle, kWidth - kRight, axes.y(1) + 15);
}

template <class Seconds>
std::string curve_svg(const Scaling& scaling, const Axes& axes, const char* name, const char* kind,
                      const Seconds& seconds) {
  std::string points, marks;
  for (const auto& step : scaling.steps) {
    const double speed = speed_up(scaling, seconds(step), step.ranks);
    points += fmt::format("{:.1f},{:.1f} ", axes.x(step.ranks), axes.y(speed));
    marks += fmt::format(
        "<circle class='{}' cx='{:.1f}' cy='{:.1f}' r='4'><title>{}, {} devices: {:.2f}x</title></circle>\n", kind,
        axes.x(step.ranks), axes.y(speed), name, step.ranks, speed);
  }
  return fmt::format("<polyline class='{}' points='{}'/>\n{}", kind, points, marks);
}

// Speed-up and efficiency, which is the speed-up divided by the number of devices.
std::string table(const Scaling& scaling) {
  std::string rows;
  for (const auto& step : scaling.steps) {
    rows += fmt::format("<tr><th scope='row'>{}</th>", step.ranks);
    for (const double seconds : {step.dp, step.ddp}) {
      const double speed = speed_up(scaling, seconds, step.ranks);
      rows += fmt::format("<td>{:.2f}x</td><td>{:.0f} %</td>", speed, 100 * speed / step.ranks);
    }
    rows += "</tr>\n";
  }
  return "<table><tr><th>devices</th><th>DP speed-up</th><th>DP efficiency</th><th>DDP speed-up</th><th>DDP "
         "efficiency</th></tr>\n" +
         rows + "</table>\n<p>Efficiency is the speed-up divided by the number of devices.</p>\n";
}

}  // namespace

std::string as_html(const Scaling& scaling) {
  const int last = std::max(2, scaling.steps.back().ranks);
  double top = last;
  for (const auto& step : scaling.steps)
    top = std::max({top, speed_up(scaling, step.dp, step.ranks), speed_up(scaling, step.ddp, step.ranks)});
  const Axes axes{.devices = std::log2(last), .speed = std::ceil(std::log2(top))};
  std::string svg = fmt::format("<svg role='img' aria-label='speed-up by devices' viewBox='0 0 {} {}' width='{}'>\n",
                                kWidth, kHeight, kWidth) +
                    grid_svg(scaling, axes);
  svg += fmt::format("<line class='ideal' x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}'/>\n", axes.x(1), axes.y(1),
                     axes.x(last), axes.y(last));
  svg += curve_svg(scaling, axes, "DP", "dp", [](const auto& step) { return step.dp; });
  svg += curve_svg(scaling, axes, "DDP", "ddp", [](const auto& step) { return step.ddp; });
  svg +=
      "<text x='90' y='36' class='ddp'>DDP, solid</text><text x='180' y='36' class='dp'>DP, dashed</text><text "
      "x='270' y='36'>ideal, dotted</text></svg>\n";
  const std::string title = fmt::format("DP and DDP over {}", escape_html(scaling.question.link));
  return html_page(
      title, fmt::format("<h1>{}</h1>\n<p>Both axes double. {}</p>\n<figure>\n{}</figure>\n{}<pre>{}</pre>\n", title,
                         scaling.question.fixed_batch
                             ? "Strong scaling: all devices share one batch."
                             : "Weak scaling: each device has a batch of its own; the speed-up is in samples "
                               "per second.",
                         svg, table(scaling), escape_html(as_text(scaling))));
}
