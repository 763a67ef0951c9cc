// A rank is killed or stopped while it computes ring attention, and every other rank gets an error that names it. Ranks
// are processes of shm.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/groups.h"
#include "tests/support/kill_points.h"

namespace {

namespace par = ls::parallel;
using Kind = par::ContextAttention;

constexpr int kRanks = 4;
constexpr std::int64_t kTime = 64;                 // positions of a rank
constexpr std::int64_t kSmall = 8, kLarge = 2048;  // features; a rank's keys are 2 KiB or 512 KiB
constexpr std::chrono::milliseconds kUntilStopped{2000}, kUntilKilled{30'000};  // time-outs of the groups

struct Fault {
  int signal;  // SIGKILL or SIGSTOP
  int victim, step;
  bool in_backward;
  std::int64_t width = kSmall;
  Kind kind = Kind::kRingZigzag;
  bool gathers = false;
  int cp = kRanks;  // the other axis of the mesh is dp

  std::chrono::milliseconds timeout() const { return signal == SIGSTOP ? kUntilStopped : kUntilKilled; }
  std::string describe() const {
    return fmt::format("{} of rank {} in step {} of {}, {} features, kind {}, gathered {}, cp {}",
                       signal == SIGSTOP ? "stop" : "end", victim, step, in_backward ? "backward" : "forward", width,
                       static_cast<int>(kind), gathers, cp);
  }
};

// Memory that all ranks of a group and the test share.
struct Board {
  std::atomic<std::int64_t> struck_at{0};  // when the signal was raised
  std::atomic<int> victim{0}, reported{0};
};

class Boards {
 public:
  explicit Boards(std::size_t count) : bytes_(count * sizeof(Board)) {
    void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    boards_ = static_cast<Board*>(memory);
    for (std::size_t i = 0; i < count; ++i) new (boards_ + i) Board;
  }
  ~Boards() { munmap(boards_, bytes_); }
  Boards(const Boards&) = delete;
  Boards& operator=(const Boards&) = delete;
  Board& operator[](std::size_t i) const { return boards_[i]; }

 private:
  std::size_t bytes_;
  Board* boards_ = nullptr;
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
    board_->victim = getpid();
    board_->struck_at = monotonic_us();
    kill(getpid(), signal_);
    _exit(3);  // a stopped process is killed and does not continue
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

// The ranks that an error reports as missing, by their numbers in the group of all ranks.
std::set<int> missing_ranks(const std::string& error) {
  static const std::regex missing(
      "rank (\\d+)(?: \\(global rank (\\d+)\\))? (?:is gone|has left|did not|does not|has not)");
  std::set<int> ranks;
  for (std::sregex_iterator at(error.begin(), error.end(), missing), end; at != end; ++at)
    ranks.insert(std::stoi((*at)[2].matched ? (*at)[2] : (*at)[1]));
  return ranks;
}

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
  const std::int64_t took_ms = (monotonic_us() - board.struck_at) / 1000, timeout_ms = fault.timeout().count();
  CHECK(board.struck_at != 0);
  if (++board.reported == kRanks - 1 && fault.signal == SIGSTOP && board.victim > 0) kill(board.victim, SIGKILL);
  const std::set<int> missing = missing_ranks(error);
  CHECK_MESSAGE(missing == std::set<int>{fault.victim}, error);
  if (fault.signal == SIGKILL) CHECK_MESSAGE(contains(error, "is gone: its process "), error);
  // The end of a process is detected without the time-out.
  CHECK(took_ms < (fault.signal == SIGSTOP ? 3 * timeout_ms : timeout_ms / 2));
}

// Runs all faults at the same time, each in a group of its own.
void check_faults(const std::vector<Fault>& faults) {
  const Boards boards(faults.size());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < faults.size(); ++i) names.push_back(fresh_group());
  const int count = static_cast<int>(faults.size()) * kRanks;
  const std::vector<ExitStatus> ended = run_processes(count, [&](int process) {
    const auto trial = static_cast<std::size_t>(process / kRanks);
    const Fault& fault = faults[trial];
    set_master(names[trial]);
    run_rank(fault,
             par::init_process_group({.backend = "shm",
                                      .timeout = fault.timeout(),
                                      .world_size = kRanks,
                                      .rank = process % kRanks,
                                      .group_name = names[trial]}),
             boards[trial]);
  });
  for (int process = 0; process < count; ++process) {
    const Fault& fault = faults[static_cast<std::size_t>(process / kRanks)];
    const ExitStatus& status = ended[static_cast<std::size_t>(process)];
    const std::string text = fault.describe();
    CAPTURE(text);
    if (process % kRanks == fault.victim)
      CHECK_MESSAGE((status.signal == SIGKILL && !status.timed_out), status.to_string());
    else
      CHECK_MESSAGE(status.ok(), "rank " << process % kRanks << ": " << status.to_string());
  }
}

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
