// A progress bar with the time left. If stdout is no terminal, there is no bar, only a line per epoch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace samples {

class ProgressBar {
 public:
  // A bar of `total` steps, of which an earlier run did `done`.
  explicit ProgressBar(std::int64_t total, std::int64_t done = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Advances by one step; redraws at most 20 times a second.
  void step(const std::string& label, double loss, double error);
  // Prints a line above the bar.
  void print(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(const std::string& label, double loss, double error) const;
  void clear() const;

  std::int64_t total_, done_;
  bool terminal_;
  Clock::time_point last_step_ = Clock::now();
  Clock::time_point last_draw_ = {};
  double seconds_per_step_ = 0;  // smoothed
};

// "0:07", "1:02:03"
std::string clock_time(double seconds);

}  // namespace samples
