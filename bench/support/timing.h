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

// Processor time of all threads of this process. Unlike the wall clock it excludes other programs.
inline double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The median over samples of the processor seconds of one call, after 0.2 s of warm-up. A sample repeats `work` until
// it takes about 2 ms, so that the cost of the clock is negligible.
template <class Work>
double median_seconds(Work&& work, double total_seconds = 1.0) {
  const auto seconds_of = [&](long repeats) {
    const double start = cpu_seconds();
    for (long i = 0; i < repeats; ++i) work();
    return cpu_seconds() - start;
  };
  for (double warm = 0; warm < 0.2;) warm += seconds_of(1);
  const long repeats = std::max(1L, static_cast<long>(2e-3 / (seconds_of(10) / 10)));
  std::vector<double> samples;
  for (double spent = 0; spent < total_seconds || samples.size() < 11;) {
    const double seconds = seconds_of(repeats);
    spent += seconds;
    samples.push_back(seconds / static_cast<double>(repeats));
  }
  return median(std::move(samples));
}

// Prints {"name": ..., "seconds": ...} if the row is wanted.
template <class Work>
void measure(const std::string& name, Work&& work, double total_seconds = 1.0) {
  if (!wanted(name)) return;
  std::printf("{\"name\": \"%s\", \"seconds\": %.4e}\n", name.c_str(), median_seconds(work, total_seconds));
  std::fflush(stdout);
}

}  // namespace bench
