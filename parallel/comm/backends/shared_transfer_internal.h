// send and recv between two ranks that see the same memory: through a ring of bytes for each direction.
#pragma once

#include <string>

#include "lockstep/parallel/comm/backends/shared_group_internal.h"

namespace lockstep::parallel {

// A send or recv on its way. Messages between two ranks arrive in the order they were sent.
class Transfer final : public GroupWork<SharedGroup> {
 public:
  Transfer(SharedGroup* group, Call call);
  void wait() override;
  bool is_completed() override;

  // Moves what can be moved now; returns whether anything was.
  bool advance(const Control& control, int rank);
  bool complete() const { return position_ == header_.size() + bytes_; }
  const Call& call() const { return call_; }
  // A message that is not what recv expects: what it is instead.
  const std::string& disagreement() const { return disagreement_; }

 private:
  friend class SharedGroup;
  // Before every message: what it is. Compared, and used for nothing else.
  using Header = std::array<std::byte, 24>;
  static Header header_of(const Call& call);
  void check_header();

  Call call_;
  std::size_t bytes_;
  std::size_t position_ = 0;  // of the message, header included
  Header header_;             // of a send: its own; of a recv: what has arrived
  std::string disagreement_;
};

}  // namespace lockstep::parallel
