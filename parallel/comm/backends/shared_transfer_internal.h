// send and recv between two ranks that share memory: through a ring of bytes for each direction.
#pragma once

#include <string>

#include "lockstep/parallel/comm/backends/shared_group_internal.h"

namespace lockstep::parallel {

// A send or recv in flight. Messages between two ranks arrive in the order they were sent.
class Transfer final : public GroupWork<SharedGroup, Transfer> {
 public:
  Transfer(SharedGroup* group, Call call);

  // Moves the bytes that can be moved without waiting; returns whether there were any.
  bool advance(const Control& control, int rank);
  bool complete() const { return position_ == sizeof(Header) + bytes_; }
  const Call& call() const { return call_; }
  // Describes a message that differs from what recv expects; empty if there is none.
  const std::string& disagreement() const { return disagreement_; }

 private:
  // Header of every message: tag, dtype, count. It is compared and used for nothing else.
  using Header = std::array<std::uint64_t, 3>;
  static Header header_of(const Call& call);
  void check_header();

  Call call_;
  std::size_t bytes_;
  std::size_t position_ = 0;  // of the message, header included
  Header header_{};           // of a send: its own; of a recv: the bytes received so far
  std::string disagreement_;
};

}  // namespace lockstep::parallel
