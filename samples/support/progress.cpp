#include "support/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "support/stop.h"

namespace samples {
namespace {

bool draws_on_stdout() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && term && std::string_view(term) != "dumb";
}

int columns() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string clock_time(double seconds) {
  const auto s = static_cast<std::int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

ProgressBar::ProgressBar(std::int64_t total, std::int64_t done)
    : total_(total), done_(done), terminal_(draws_on_stdout()) {
  if (!terminal_) return;
  set_cursor_hidden(true);
  fmt::print("\x1b[?25l");
}

ProgressBar::~ProgressBar() {
  if (!terminal_) return;
  clear();
  fmt::print("\x1b[?25h");
  std::fflush(stdout);
  set_cursor_hidden(false);
}

void ProgressBar::step(const std::string& label, double loss, double error) {
  ++done_;
  if (!terminal_) return;
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_step_).count();
  last_step_ = now;
  // A moving average over about fifty steps: follows changes of the machine's speed smoothly.
  seconds_per_step_ = seconds_per_step_ == 0 ? seconds : 0.98 * seconds_per_step_ + 0.02 * seconds;
  if (now - last_draw_ < std::chrono::milliseconds(50)) return;
  last_draw_ = now;
  draw(label, loss, error);
}

void ProgressBar::draw(const std::string& label, double loss, double error) const {
  const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1;
  const double left = seconds_per_step_ * static_cast<double>(total_ - done_);
  const std::string before = fmt::format("{} [", label);
  const std::string spread = error > 0 ? fmt::format(" ± {:.4f}", error) : "";
  const std::string after =
      fmt::format("] {:3.0f}%  step loss {:.4f}{}  {} left", 100 * share, loss, spread, clock_time(left));
  const int room = columns() - static_cast<int>(before.size() + after.size());
  const int width = std::clamp(room, 0, 40), full = static_cast<int>(share * width);
  fmt::print("\r{}{:=<{}}{:{}}{}\x1b[K", before, "", full, "", width - full, after);
  std::fflush(stdout);
}

void ProgressBar::clear() const { fmt::print("\r\x1b[K"); }

void ProgressBar::print(const std::string& line) {
  if (terminal_) clear();
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace samples
