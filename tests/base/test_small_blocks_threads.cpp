// Small blocks and the objects in them, across threads.
#include "lockstep/base/small_blocks.h"

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/testing.h"

TEST_CASE("small blocks keep their contents, and another thread than the allocating one may free them") {
  constexpr std::size_t kSizes[] = {0, 1, 64, 65, 200, 1000, 1024, 1025, 5000};
  for (int round = 0; round < 3; ++round) {
    std::vector<std::pair<unsigned char*, std::size_t>> blocks;
    std::thread maker([&] {
      for (int i = 0; i < 2000; ++i) {
        const std::size_t bytes = kSizes[static_cast<std::size_t>(i) % std::size(kSizes)];
        auto* block = static_cast<unsigned char*>(ls::small_blocks::allocate(bytes));
        std::memset(block, i % 251, bytes);
        blocks.push_back({block, bytes});
      }
    });
    maker.join();
    bool intact = true;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      for (std::size_t b = 0; b < blocks[i].second; ++b) intact = intact && blocks[i].first[b] == i % 251;
      ls::small_blocks::deallocate(blocks[i].first, blocks[i].second);
    }
    CHECK(intact);
  }
}

TEST_CASE("a graph that one thread records runs backward and is freed on another, while others do the same") {
  std::vector<std::thread> threads;
  std::vector<double> gradients(4);
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    threads.emplace_back([&gradients, t] {
      for (int i = 0; i < 50; ++i) {
        const ls::Tensor x = ls::full({3}, 2.0, {.requires_grad = true});
        ls::Tensor loss = ls::sum(x * x * x);
        std::thread([loss = std::move(loss)]() mutable {
          loss.backward();
          loss = ls::Tensor();
        }).join();
        gradients[t] += ls::sum(x.grad()).item<double>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double gradient : gradients) CHECK(gradient == 50 * 3 * 12);
}
