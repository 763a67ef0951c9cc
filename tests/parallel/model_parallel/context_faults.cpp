// A rank is killed or stopped while it computes ring attention, and every other rank gets an error that names it. Ranks
// are processes of shm.
#include <signal.h>
#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/parallel/model_parallel/faults.h"

namespace {

namespace par = ls::parallel;
using model_faults::Board;
using model_faults::kRanks;
using Kind = par::ContextAttention;

constexpr std::int64_t kTime = 64;                 // positions of a rank
constexpr std::int64_t kSmall = 8, kLarge = 2048;  // features; a rank's keys are 2 KiB or 512 KiB

struct Fault {
  int signal;  // SIGKILL or SIGSTOP
  int victim, step;
  bool in_backward;
  std::int64_t width = kSmall;
  Kind kind = Kind::kRingZigzag;
  bool gathers = false;
  int cp = kRanks;  // the other axis of the mesh is dp

  std::string describe() const {
    return fmt::format("{} of rank {} in step {} of {}, {} features, kind {}, gathered {}, cp {}",
                       signal == SIGSTOP ? "stop" : "end", victim, step, in_backward ? "backward" : "forward", width,
                       static_cast<int>(kind), gathers, cp);
  }
};

// A mask of zeros (positions of this rank, all positions), whose columns lie one after another in memory. Each
// step reads the columns of one sequence block. If their memory cannot be read, the step raises SIGSEGV, and the
// handler raises the signal of the fault.
class TrappedMask {
 public:
  explicit TrappedMask(std::int64_t all) : count_(static_cast<std::size_t>(all * kTime)) {
    void* const memory =
        mmap(nullptr, count_ * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    first_ = static_cast<float*>(memory);
  }
  ~TrappedMask() { munmap(first_, count_ * sizeof(float)); }
  TrappedMask(const TrappedMask&) = delete;
  TrappedMask& operator=(const TrappedMask&) = delete;

  ls::Tensor tensor() const {
    return ls::from_memory(std::span(first_, count_), {static_cast<std::int64_t>(count_) / kTime, kTime})
        .transpose(0, 1);
  }
  // The next read of the columns from `column` on, whose memory must begin a page, raises the signal.
  void arm(std::int64_t column, std::int64_t columns, int with, Board& board) const {
    first_byte_ = reinterpret_cast<std::byte*>(first_ + column * kTime);
    bytes_ = static_cast<std::size_t>(columns * kTime) * sizeof(float);
    signal_ = with, board_ = &board;
    struct sigaction action {};
    action.sa_sigaction = raise_signal;
    action.sa_flags = SA_SIGINFO;
    REQUIRE(sigaction(SIGSEGV, &action, nullptr) == 0);
    REQUIRE(mprotect(first_byte_, bytes_, PROT_NONE) == 0);
  }

 private:
  static void raise_signal(int, siginfo_t* info, void*) {
    const auto* const at = static_cast<const std::byte*>(info->si_addr);
    if (at < first_byte_ || at >= first_byte_ + bytes_) {  // another defect, which ends the process when it repeats
      signal(SIGSEGV, SIG_DFL);
      return;
    }
    board_->strike(signal_);
  }
  static inline std::byte* first_byte_ = nullptr;
  static inline std::size_t bytes_ = 0;
  static inline int signal_ = 0;
  static inline Board* board_ = nullptr;
  std::size_t count_;
  float* first_ = nullptr;
};

struct Net : ls::nn::Module {
  ls::nn::Parameter& scale;
  ls::Tensor mask;
  explicit Net(std::int64_t width) : scale(add_parameter("scale", ls::ones({width}))) {}
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = (x * scale).unsqueeze(1);
    return ls::scaled_dot_product_attention(y, y, y, {.attn_mask = mask});
  }
};

// Takes a step without the fault and one with it, in which every rank but the victim must get an error.
void run_rank(const Fault& fault, const Group& group, Board& board) {
  const par::DeviceMesh mesh(group, {{"dp", kRanks / fault.cp}, {"cp", fault.cp}});
  Net net(fault.width);
  const TrappedMask mask(fault.cp * kTime);
  net.mask = mask.tensor();
  par::context_parallel(net, mesh["cp"], {.attention = fault.kind, .gather_keys = fault.gathers});
  par::DistributedDataParallel run(net, mesh.flatten({"cp", "dp"}).group());
  const ls::Tensor x = ls::ones({1, kTime, fault.width});
  const auto arm = [&] {
    const int own = mesh["cp"].rank(), block = (own - fault.step + fault.cp) % fault.cp;
    const std::int64_t columns = fault.kind == Kind::kRingZigzag ? kTime / 2 : kTime;
    mask.arm(block * columns, columns, fault.signal, board);
  };
  const auto step = [&](bool fails) {
    run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) {
      if (fails && !fault.in_backward) arm();
      const ls::Tensor y = net(x);
      if (fails && fault.in_backward) arm();
      return y.sum();
    });
  };
  step(false);
  std::string error;
  try {
    step(group->rank() == fault.victim);
  } catch (const ls::CommError& thrown) {
    error = thrown.what();
  }
  model_faults::check_report(fault.signal, fault.victim, board, error);
}

void check_faults(const std::vector<Fault>& faults) { model_faults::check_faults(faults, run_rank); }

}  // namespace

TEST_CASE("a rank that is killed in a step of ring attention is named by the others") {
  for (const bool in_backward : {false, true}) {
    for (const int step : {0, 1, 3}) {
      const int victim = (step + (in_backward ? 2 : 0)) % kRanks;
      for (const std::int64_t width : {kSmall, kLarge})
        check_faults(
            {{SIGKILL, victim, step, in_backward, width}, {SIGKILL, victim, step, in_backward, width, Kind::kRing}});
    }
    check_faults({{SIGKILL, 1, 2, in_backward, kSmall, Kind::kRing, true},
                  {.signal = SIGKILL, .victim = 1, .step = 1, .in_backward = in_backward, .cp = 2}});
  }
}

TEST_CASE("a rank that is stopped in a step of ring attention is named by the others after the time-out") {
  check_faults({{SIGSTOP, 1, 1, false},
                {SIGSTOP, 2, 1, true},
                {SIGSTOP, 3, 2, false, kLarge, Kind::kRing},
                {SIGSTOP, 0, 3, true, kLarge, Kind::kRing}});
  // Some ranks finish the step and wait for gradients in the group of all ranks, where ranks that wait in attention
  // have not arrived.
  check_faults({{SIGSTOP, 2, 2, true}, {.signal = SIGSTOP, .victim = 1, .step = 1, .in_backward = true, .cp = 2}});
}
