// The roofline of one thread: its rate of operations and of bytes, and how near to them operations come.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace ls = lockstep;
using Clock = std::chrono::steady_clock;

// The least seconds of several calls: other programs only make a call slower.
template <class F>
double seconds_of(F f) {
  double least = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto begin = Clock::now();
    f();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

int main() {
  ls::set_num_threads(1);
  const ls::NoGradGuard no_grad;
  constexpr std::int64_t kLong = 1 << 25, kIn = 4096, kOut = 8192;  // 134 MB of each: no cache holds it
  const ls::Tensor a = ls::ones({kLong}), b = ls::ones({kLong}), weight = ls::randn({kIn, kOut});
  const ls::Tensor square = ls::randn({1024, 1024});
  const double peak = 2.0 * 1024 * 1024 * 1024 / seconds_of([&] { return ls::matmul(square, square); });
  const double bytes = 8.0 * kLong / seconds_of([&] { b.copy_(a); });
  std::printf("peak %.0f GFLOP/s, memory %.1f GB/s: the ridge is at %.1f FLOP per byte\n\n", peak * 1e-9, bytes * 1e-9,
              peak / bytes);

  std::printf("operation          FLOP/byte   roof GFLOP/s   measured   %% of the roof\n");
  const auto row = [&](const char* name, double operations, double moved, double seconds) {
    const double roof = std::min(peak, operations / moved * bytes), measured = operations / seconds;
    std::printf("%-17s %10.2f %14.2f %10.2f %15.0f\n", name, operations / moved, roof * 1e-9, measured * 1e-9,
                100 * measured / roof);
  };
  row("a += b", kLong, 12.0 * kLong, seconds_of([&] { a.add_(b); }));
  for (const int rows : {1, 4, 16, 64, 256}) {
    const ls::Tensor x = ls::randn({rows, kIn});
    char name[32];
    std::snprintf(name, sizeof name, "linear, %d row%s", rows, rows == 1 ? "" : "s");
    row(name, 2.0 * rows * kIn * kOut, 4.0 * (kIn * kOut + rows * (kIn + kOut)),
        seconds_of([&] { return ls::matmul(x, weight); }));
  }
}
