// Large pieces of memory on CPU devices, shared by threads. Not installed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/threads.h"

namespace lockstep::raw {

// Calls body(offset, length) for pieces of `bytes`, on several threads if worthwhile.
template <class F>
void for_pieces(std::size_t bytes, F body) {
  static constexpr std::size_t kPiece = 1 << 17;
  struct Job {
    std::size_t bytes;
    F* body;
  } job{bytes, &body};
  if (bytes < 2 * kPiece) return body(std::size_t{0}, bytes);
  parallel_for(
      static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece),
      [](void* context, std::int64_t piece) {
        const Job& of = *static_cast<Job*>(context);
        const std::size_t offset = static_cast<std::size_t>(piece) * kPiece;
        (*of.body)(offset, std::min(kPiece, of.bytes - offset));
      },
      &job);
}

}  // namespace lockstep::raw
