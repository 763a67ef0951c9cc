// Measurement and output of every benchmark program here and its peers. Independent of Lockstep and LibTorch.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

// After a thread has existed, reference counts are atomic, as in any real program.
inline void start_a_thread_once() {
  std::thread([] {}).join();
}

// True if BENCH_FILTER selects this row by a part of its name.
inline bool wanted(const std::string& name) {
  const char* filter = std::getenv("BENCH_FILTER");
  return filter == nullptr || name.find(filter) != std::string::npos;
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Number of threads that the measured work uses: BENCH_THREADS, by default 1.
inline int threads() {
  const char* count = std::getenv("BENCH_THREADS");
  return count == nullptr ? 1 : std::max(1, std::atoi(count));
}

// With one thread, the processor time of this process: unlike the wall clock, it excludes other programs. With several
// threads, the wall clock.
inline double measured_seconds() {
  timespec time{};
  clock_gettime(threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The median over samples of the seconds of one call, after 0.2 s of warm-up. A sample repeats `work` until it takes
// about 2 ms, so that the cost of the clock is negligible. There are at least 11 samples, or 3 if these take 10 s.
template <class Work>
double median_seconds(Work&& work, double total_seconds = 1.0) {
  const auto seconds_of = [&](long repeats) {
    const double start = measured_seconds();
    for (long i = 0; i < repeats; ++i) work();
    return measured_seconds() - start;
  };
  double once = 0;
  for (double warm = 0; warm < 0.2; warm += once) once = seconds_of(1);
  const long repeats = once > 2e-3 ? 1 : std::max(1L, static_cast<long>(2e-3 / (seconds_of(10) / 10)));
  std::vector<double> samples;
  for (double spent = 0; spent < total_seconds || samples.size() < (spent < 10 ? 11 : 3);) {
    const double seconds = seconds_of(repeats);
    spent += seconds;
    samples.push_back(seconds / static_cast<double>(repeats));
  }
  return median(std::move(samples));
}

// Prints {"name": ..., "seconds": ...} if the row is wanted. With several threads, their number ends the name.
template <class Work>
void measure(const std::string& work_name, Work&& work, double total_seconds = 1.0) {
  const std::string name = threads() == 1 ? work_name : work_name + "_threads_" + std::to_string(threads());
  if (!wanted(name)) return;
  std::printf("{\"name\": \"%s\", \"seconds\": %.4e}\n", name.c_str(), median_seconds(work, total_seconds));
  std::fflush(stdout);
}

}  // namespace bench
