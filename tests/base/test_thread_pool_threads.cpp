// The CPU pool: every chunk runs once, exceptions reach the caller, and a nested call runs on its own thread.
#include <array>
#include <atomic>
#include <stdexcept>

#include "tests/support/testing.h"

namespace {

constexpr int kChunks = 64;

// Calls body(chunk) for all chunks.
template <class F>
void run(F body) {
  ls::parallel_for(
      kChunks, [](void* context, std::int64_t chunk) { (*static_cast<F*>(context))(chunk); }, &body);
}

}  // namespace

TEST_CASE("every chunk runs exactly once, job after job, also after idleness and with another number of threads") {
  const int before = ls::num_threads();
  for (const int threads : {1, 2, 3, 2}) {
    ls::set_num_threads(threads);
    for (int job = 0; job < 2000; ++job) {
      std::array<std::atomic<int>, kChunks> calls{};
      run([&](std::int64_t chunk) { ++calls[static_cast<std::size_t>(chunk)]; });
      REQUIRE(std::ranges::all_of(calls, [](const auto& count) { return count == 1; }));
    }
  }
  ls::set_num_threads(before);
}

TEST_CASE("an exception of a chunk, on any thread, reaches the caller, and the pool works again") {
  const int before = ls::num_threads();
  ls::set_num_threads(3);
  for (int bad = 0; bad < kChunks; ++bad) {
    std::string text;
    try {
      run([&](std::int64_t chunk) {
        if (chunk == bad) throw std::runtime_error("chunk " + std::to_string(chunk));
      });
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    CHECK(text == "chunk " + std::to_string(bad));
    std::atomic<int> calls = 0;
    run([&](std::int64_t) { ++calls; });
    CHECK(calls == kChunks);
  }
  ls::set_num_threads(before);
}

TEST_CASE("of several chunks that throw, the lowest one's exception reaches the caller, whichever thread is faster") {
  const int before = ls::num_threads();
  ls::set_num_threads(3);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::string text;
    try {
      run([&](std::int64_t chunk) {
        if (chunk >= repeat % kChunks) throw std::runtime_error("chunk " + std::to_string(chunk));
      });
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    CHECK(text == "chunk " + std::to_string(repeat % kChunks));
  }
  ls::set_num_threads(before);
}

TEST_CASE("a nested parallel_for runs on the thread that calls it") {
  std::atomic<int> calls = 0;
  run([&](std::int64_t) { run([&](std::int64_t) { ++calls; }); });
  CHECK(calls == kChunks * kChunks);
}
