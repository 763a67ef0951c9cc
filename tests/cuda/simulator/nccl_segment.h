// Connects the ranks of a simulated communicator: shared memory, with a ring of bytes from every rank to every rank.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace simulator {

// A ring of bytes from one writer to one reader.
class Ring {
 public:
  std::size_t filled() const {
    return written_.load(std::memory_order_acquire) - read_.load(std::memory_order_acquire);
  }
  std::size_t room() const { return kBytes - filled(); }
  void write(const void* data, std::size_t bytes);  // at most `room`
  void read(void* data, std::size_t bytes);         // at most `filled`

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 10;
  static_assert(std::atomic<std::size_t>::is_always_lock_free);  // atomics without locks work between processes
  std::atomic<std::size_t> written_, read_;
  std::array<unsigned char, kBytes> bytes_;
};

// Identifies the GPU of a rank.
struct Gpu {
  std::uint64_t host;
  std::array<char, 16> uuid;
  bool operator==(const Gpu&) const = default;
};

class Segment {
 public:
  // Joins as this rank; ranks with the same name share a segment. Throws std::system_error.
  Segment(const std::string& name, int rank, int size, const Gpu& gpu);
  // Leaves; an incomplete group stays incomplete.
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  bool is_complete();
  const Gpu& gpu(int rank) const;
  Ring& ring(int from, int to) const;

 private:
  struct Head;
  std::string name_;
  int size_;
  std::size_t bytes_;
  Head* head_ = nullptr;
  bool is_complete_ = false;
};

}  // namespace simulator
