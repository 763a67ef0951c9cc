#include "lockstep/parallel/comm/backends/message_rounds_internal.h"

#include <algorithm>
#include <bit>

namespace lockstep::parallel {

std::vector<Round> exchange_rounds(int rank, int size) {
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  // The parts of a rank below p that has exchanged with the ranks of its aligned range of `width` ranks.
  const auto held_by = [&](int each, int width) {
    const int begin = each / width * width;
    return HeldParts{{begin, begin + width}, {std::min(p + begin, size), std::min(p + begin + width, size)}};
  };
  const HeldParts all{{0, p}, {p, size}};
  if (rank >= p) {
    const int other = rank - p;
    const HeldParts own{{}, {rank, rank + 1}};
    return {{.to = other, .held = own, .held_after = own},
            {.from = other, .held = own, .received = all, .held_after = all}};
  }
  std::vector<Round> rounds;
  const int other = p + rank;
  if (other < size)
    rounds.push_back({.from = other,
                      .held = {{rank, rank + 1}, {}},
                      .received = {{}, {other, other + 1}},
                      .held_after = held_by(rank, 1)});
  for (int width = 1; width < p; width *= 2) {
    const int peer = rank ^ width;
    rounds.push_back({.to = peer,
                      .from = peer,
                      .held = held_by(rank, width),
                      .received = held_by(peer, width),
                      .held_after = held_by(rank, 2 * width)});
  }
  if (other < size) rounds.push_back({.to = other, .held = all, .held_after = all});
  return rounds;
}

}  // namespace lockstep::parallel
