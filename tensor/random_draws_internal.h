// Records the random draws of a function, so that the function can be repeated with the same numbers.
#pragma once

#include <vector>

#include "lockstep/tensor/random.h"

namespace lockstep::random {

struct Draw {
  Stream stream;
  std::uint64_t blocks;  // of four 32-bit numbers
  Position position;
};

// While it exists, the calling thread replays the draws in `repeated`, in order, unless `repeated` is null. Each draw is
// appended to `recorded`, unless it is null, and to that of enclosing frames up to the frame that replays. Throws
// InvalidArgument for a draw whose stream or number of blocks differs from the replayed one.
struct DrawFrame {
  DrawFrame(std::vector<Draw>* recorded, const std::vector<Draw>* repeated);
  ~DrawFrame();
  DrawFrame(const DrawFrame&) = delete;
  DrawFrame& operator=(const DrawFrame&) = delete;

  std::vector<Draw>* recorded;
  const std::vector<Draw>* repeated;
  std::size_t next = 0;  // index into `repeated`
  DrawFrame* outer;
};

// Whether the calling thread repeats draws.
bool is_repeating();
// Whether the calling thread records or repeats draws.
bool has_draw_frame();

}  // namespace lockstep::random
