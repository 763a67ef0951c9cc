#include "tests/cuda/simulator/nccl_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "tests/cuda/simulator/simulator.h"

namespace simulator {
namespace {

constexpr int kMostRanks = 64;

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::system_category(), call); }

}  // namespace

// The start of the segment, which is zero when the first rank arrives; the rings follow.
struct alignas(64) Segment::Head {
  struct Rank {
    std::atomic<bool> is_taken;
    Gpu gpu;
  };
  std::atomic<int> size, come;
  std::array<Rank, kMostRanks> ranks;
};

// --- rings ----------------------------------------------------------------------------------------------------------

void Ring::write(const void* data, std::size_t bytes) {
  const std::size_t written = written_.load(std::memory_order_relaxed), at = written % kBytes;
  const std::size_t first = std::min(bytes, kBytes - at);
  const auto* const from = static_cast<const unsigned char*>(data);
  std::copy_n(from, first, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  std::copy_n(from + first, bytes - first, bytes_.begin());
  written_.store(written + bytes, std::memory_order_release);
}

void Ring::read(void* data, std::size_t bytes) {
  const std::size_t read = read_.load(std::memory_order_relaxed), at = read % kBytes;
  const std::size_t first = std::min(bytes, kBytes - at);
  auto* const to = static_cast<unsigned char*>(data);
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at), first, to);
  std::copy_n(bytes_.begin(), bytes - first, to + first);
  read_.store(read + bytes, std::memory_order_release);
}

// --- the segment ----------------------------------------------------------------------------------------------------

// The first rank to arrive creates the segment, and the last one unlinks its name.
Segment::Segment(const std::string& name, int rank, int size, const Gpu& gpu)
    : name_(name), size_(size),
      bytes_(sizeof(Head) + static_cast<std::size_t>(size) * static_cast<std::size_t>(size) * sizeof(Ring)) {
  if (size > kMostRanks) give_up("more than " + std::to_string(kMostRanks) + " ranks");
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) fail("shm_open");
  const bool has_room = ftruncate(file, static_cast<off_t>(bytes_)) == 0;
  void* const mapped = has_room ? mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) {
    shm_unlink(name.c_str());
    fail("a segment for the ranks");
  }
  head_ = static_cast<Head*>(mapped);
  int others = 0;
  if (!head_->size.compare_exchange_strong(others, size) && others != size)
    give_up("ranks disagree on their number: " + std::to_string(others) + " and " + std::to_string(size));
  Head::Rank& own = head_->ranks[static_cast<std::size_t>(rank)];
  if (own.is_taken.exchange(true)) give_up("two ranks have the number " + std::to_string(rank));
  own.gpu = gpu;
  if (head_->come.fetch_add(1) + 1 == size) shm_unlink(name.c_str());
}

Segment::~Segment() {
  if (!is_complete_) {
    head_->come.fetch_sub(1);
    shm_unlink(name_.c_str());
  }
  munmap(head_, bytes_);
}

bool Segment::is_complete() {
  if (!is_complete_) is_complete_ = head_->come.load() == size_;
  return is_complete_;
}

const Gpu& Segment::gpu(int rank) const { return head_->ranks[static_cast<std::size_t>(rank)].gpu; }

Ring& Segment::ring(int from, int to) const {
  return reinterpret_cast<Ring*>(head_ + 1)[static_cast<std::size_t>(from * size_ + to)];
}

}  // namespace simulator
