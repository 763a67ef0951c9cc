// File descriptors of the system: an owner, and what its calls report.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

namespace lockstep {

// Owns a file descriptor; -1 means none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void reset();  // closes the descriptor; errno stays

 private:
  int number_ = -1;
};

// Repeats a system call that a signal interrupted.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// strerror's text, thread-safe. If the process has run out of file descriptors, the text includes the limit and
// the fix.
std::string reason(int error);
// Whether `error` means that this process or the system has no file descriptors left.
inline bool is_out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }
// The maximum file size by RLIMIT_FSIZE (ulimit -f). A write beyond it raises a signal that ends the process.
std::uint64_t file_size_limit();

}  // namespace lockstep
