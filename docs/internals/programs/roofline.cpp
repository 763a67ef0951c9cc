// The roofline of one thread: its peak rates of arithmetic and of memory, and how near operations come to the roof.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace ls = lockstep;
double seconds_of(const auto& call) {
  double least = 1e9;  // of 7 calls: other programs can only make a call slower
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

int main() {
  ls::set_num_threads(1);
  constexpr std::int64_t kLong = 1 << 25, kIn = 4096, kOut = 8192;  // 134 MB each: no cache holds it
  const ls::Tensor a = ls::ones({kLong}), b = ls::ones({kLong}), weight = ls::randn({kIn, kOut});
  const ls::Tensor square = ls::randn({1024, 1024});
  const double peak = 2.0 * 1024 * 1024 * 1024 / seconds_of([&] { ls::matmul(square, square); });
  const double bytes = 8.0 * kLong / seconds_of([&] { b.copy_(a); });
  std::printf("peak %.0f GFLOP/s, memory %.1f GB/s: the ridge is at %.1f FLOP per byte\n\n", peak * 1e-9, bytes * 1e-9,
              peak / bytes);
  std::printf("operation  rows  FLOP/byte   roof GFLOP/s   measured   %% of the roof\n");
  const auto row = [&](int rows, const char* name, double operations, double moved, double seconds) {
    const double roof = std::min(peak, operations / moved * bytes), measured = operations / seconds;
    std::printf("%-9s %5d %10.2f %14.2f %10.2f %15.0f\n", name, rows, operations / moved, roof * 1e-9, measured * 1e-9,
                100 * measured / roof);
  };
  row(1, "a += b", kLong, 12.0 * kLong, seconds_of([&] { a.add_(b); }));
  for (const int m : {1, 4, 16, 64, 256}) {
    const ls::Tensor x = ls::randn({m, kIn});
    row(m, "linear", 2.0 * m * kIn * kOut, 4.0 * (kIn * kOut + m * (kIn + kOut)),
        seconds_of([&] { ls::matmul(x, weight); }));
  }
}
