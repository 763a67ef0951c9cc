// Large pieces of memory on CPU devices, shared by threads. Not installed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/threads.h"

namespace lockstep::raw {

// Calls body(offset, length) for pieces of `bytes`, whole units each, on several threads if worthwhile.
template <class F>
void for_pieces(std::size_t bytes, F body, std::size_t unit = 1) {
  constexpr std::size_t kPiece = 1 << 17;
  struct Job {
    std::size_t bytes, piece;
    F* body;
  } job{bytes, std::max(kPiece / unit, std::size_t{1}) * unit, &body};
  if (bytes < 2 * kPiece) return body(std::size_t{0}, bytes);
  parallel_for(
      static_cast<std::int64_t>((bytes + job.piece - 1) / job.piece),
      [](void* context, std::int64_t piece) {
        const Job& of = *static_cast<Job*>(context);
        const std::size_t offset = static_cast<std::size_t>(piece) * of.piece;
        (*of.body)(offset, std::min(of.piece, of.bytes - offset));
      },
      &job);
}

}  // namespace lockstep::raw
