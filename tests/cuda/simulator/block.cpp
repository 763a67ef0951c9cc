// Grids of threads: the threads of a block run in turn, each on its own stack, and wait for each other at barriers.
// After each barrier their order is reversed, one warp after the other, so that a result that depends on the order is
// soon wrong.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "tests/cuda/simulator/runtime_state.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 gridDim;

namespace simulator {
namespace {

constexpr std::size_t kStack = 256 << 10;
constexpr unsigned kWarp = 32;
constexpr unsigned kMostThreads = 1024;

enum class State { kReady, kAtBarrier, kInShuffle, kEnded };

struct Fiber {
  jmp_buf at;
  ucontext_t start;
  void* stack = nullptr;
  bool is_started = false;
  State state = State::kEnded;
};

struct Warp {
  std::array<int, kWarp> values[2];  // of this exchange and the previous one, which others may still read
  int exchange = 0;
};

// One for the process: the mutex admits one user at a time.
struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::array<Warp, kMostThreads / kWarp> warps;
  const std::function<void()>* thread = nullptr;
  unsigned running = 0;
  jmp_buf scheduler;
};
Machine& machine() {
  static auto* const instance = new Machine;
  return *instance;
}

// The main function of a fiber: runs threads, each started by the scheduler.
void live() {
  for (;;) {
    Machine& all = machine();
    (*all.thread)();
    Fiber& own = *all.fibers[all.running];
    own.state = State::kEnded;
    if (_setjmp(own.at) == 0) _longjmp(all.scheduler, 1);
  }
}

void yield_as(State state) {
  Machine& all = machine();
  Fiber& own = *all.fibers[all.running];
  own.state = state;
  if (_setjmp(own.at) == 0) _longjmp(all.scheduler, 1);
}

void resume(unsigned thread) {
  Machine& all = machine();
  Fiber& fiber = *all.fibers[thread];
  all.running = thread;
  threadIdx = {thread, 0, 0};
  if (_setjmp(all.scheduler) != 0) return;
  if (fiber.is_started) _longjmp(fiber.at, 1);
  fiber.is_started = true;
  fiber.stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fiber.stack == MAP_FAILED || getcontext(&fiber.start) != 0) give_up("no stack for a thread of a block");
  fiber.start.uc_stack.ss_sp = fiber.stack;
  fiber.start.uc_stack.ss_size = kStack;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, live, 0);
  setcontext(&fiber.start);
}

bool is_all(unsigned first, unsigned end, State state) {
  for (unsigned i = first; i < end; ++i) {
    if (machine().fibers[i]->state != state) return false;
  }
  return true;
}

void release(unsigned first, unsigned end) {
  for (unsigned i = first; i < end; ++i) machine().fibers[i]->state = State::kReady;
}

// Runs a warp until all of its threads wait for other warps, so as far ahead of these as possible.
void run_warp(unsigned first, unsigned end, bool forwards) {
  for (;;) {
    for (unsigned i = first; i < end; ++i) {
      const unsigned thread = forwards ? i : first + end - 1 - i;
      if (machine().fibers[thread]->state == State::kReady) resume(thread);
    }
    if (end - first < kWarp || !is_all(first, end, State::kInShuffle)) return;
    release(first, end);
    machine().warps[first / kWarp].exchange ^= 1;
  }
}

void run_block(unsigned threads) {
  release(0, threads);
  const unsigned warps = (threads + kWarp - 1) / kWarp;
  for (bool forwards = true;; forwards = !forwards) {
    for (unsigned i = 0; i < warps; ++i) {
      const unsigned warp = forwards ? i : warps - 1 - i;
      run_warp(warp * kWarp, std::min((warp + 1) * kWarp, threads), forwards);
    }
    if (is_all(0, threads, State::kEnded)) return;
    if (!is_all(0, threads, State::kAtBarrier))
      give_up("the threads of a block wait for each other at different barriers");
    release(0, threads);
  }
}

}  // namespace

void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& thread) {
  Machine& all = machine();
  all.thread = &thread;
  while (all.fibers.size() < threads) all.fibers.push_back(std::make_unique<Fiber>());
  gridDim = dim3(blocks, 1, 1);
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx = {block, 0, 0};
    run_block(threads);
  }
}

cudaError_t launch(const cudaLaunchConfig_t& config, std::size_t bytes, std::function<void()> thread) {
  const Call answer("cudaLaunchKernel");
  if (answer.refused() != cudaSuccess) return answer(answer.refused());
  const dim3 grid = config.gridDim, block = config.blockDim;
  constexpr std::size_t kMostArguments = 32'764;  // bytes, since CUDA 12.1
  if (grid.x == 0 || grid.x > 2147483647u || grid.y != 1 || grid.z != 1 || block.x == 0 || block.x > kMostThreads ||
      block.y != 1 || block.z != 1 || config.dynamicSmemBytes != 0 || config.numAttrs != 0)
    return answer(cudaErrorInvalidConfiguration);
  if (bytes > kMostArguments) return answer(cudaErrorInvalidValue);
  return answer(enqueue(config.stream, [grid, block, thread = std::move(thread)] {
    run_grid(grid.x, block.x, thread);
    return true;
  }));
}

}  // namespace simulator

void __syncthreads() { simulator::yield_as(simulator::State::kAtBarrier); }

namespace simulator {
namespace {

// The value of lane source(own lane) of the warp, once all of its threads have called.
template <class Source>
int shuffle(unsigned mask, int value, Source source) {
  if (mask != 0xffffffffu) give_up("a shuffle of a part of a warp");
  const unsigned lane = threadIdx.x % kWarp;
  Warp& warp = machine().warps[threadIdx.x / kWarp];
  std::array<int, kWarp>& values = warp.values[warp.exchange];
  values[lane] = value;
  yield_as(State::kInShuffle);
  const unsigned from = source(lane);
  return from < kWarp ? values[from] : value;
}

}  // namespace
}  // namespace simulator

int __shfl_down_sync(unsigned mask, int value, unsigned distance) {
  return simulator::shuffle(mask, value, [=](unsigned lane) { return lane + distance; });
}
int __shfl_xor_sync(unsigned mask, int value, int bits) {
  return simulator::shuffle(mask, value, [=](unsigned lane) { return lane ^ static_cast<unsigned>(bits); });
}
int __shfl_sync(unsigned mask, int value, int lane) {
  return simulator::shuffle(mask, value, [=](unsigned) { return static_cast<unsigned>(lane); });
}
