// Records the random draws of a function, so that the function can be repeated with the same numbers.
#pragma once

#include <vector>

#include "lockstep/tensor/random.h"

namespace lockstep::random {

struct Draw {
  Stream stream;
  std::uint64_t blocks;
  Position position;
};

// While it exists, the calling thread's draws are those of `repeated`, in order, unless it is null. Draws are added to
// `recorded`, unless it is null; so are those of frames inside it that do not repeat. A draw that differs from the
// repeated one in purpose or size throws InvalidArgument.
struct DrawFrame {
  DrawFrame(std::vector<Draw>* recorded, const std::vector<Draw>* repeated);
  ~DrawFrame();
  DrawFrame(const DrawFrame&) = delete;
  DrawFrame& operator=(const DrawFrame&) = delete;

  std::vector<Draw>* recorded;
  const std::vector<Draw>* repeated;
  std::size_t next = 0;  // of `repeated`
  DrawFrame* outer;
};

// Whether the calling thread repeats draws.
bool is_repeating();

}  // namespace lockstep::random
