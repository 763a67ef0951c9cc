/// \file
/// All-reduces hop by hop, for teaching: which messages an algorithm sends, and who may watch them.
///
/// On the backend sim an all_reduce runs by a plan of messages between the ranks' threads. The same plan says
/// what is sent, what the traffic counters hold, and how long it takes on a simulated network (simulation.h).
///
/// With n ranks and P bytes a rank (c elements; element i belongs to rank r where c r / n <= i < c (r+1) / n):
///     algorithm         steps                           sent by a rank
///     direct            2                               2 (n-1) / n P: each owner adds what all send it, and sends the sum
///     ring              2 (n-1)                         2 (n-1) / n P: sums travel around, gathering a rank at each step
///     tree              2 ceil(log2 n)                  P up and P for each child; rank 0 ceil(log2 n) P
///     halving_doubling  2 log2 n                        2 (n-1) / n P: half as much at each step, then twice as much
/// halving_doubling with n between two powers of two: n - p ranks first give all they have to a neighbour, and get the sums at
/// the end: two more steps, and P more for those neighbours. (Thakur, Rabenseifner, Gropp: Optimization of collective
/// communication operations in MPICH, 2005)
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

/// By which messages an all_reduce moves its data. kDirect, the canonical way: each rank adds a share of the elements.
enum class Algorithm : std::uint8_t { kDirect, kRing, kTree, kHalvingDoubling };
const char* name(Algorithm algorithm);  ///< "ring"

/// One message: elements [begin, end) of the tensor.
struct Hop {
  int from = 0;            ///< the rank that sends
  int to = 0;              ///< the rank that receives
  std::int64_t begin = 0;  ///< the first element
  std::int64_t end = 0;    ///< past the last element
  bool adds = false;       ///< to what the receiver has; else it replaces that
};

/// Which messages make up an all-reduce of `count` elements. A rank takes a step when it has sent and received all of the
/// one before. What a rank receives in one step to be added is added to its own in canonical order of the ranks.
class HopPlan {
 public:
  /// Throws InvalidArgument for less than one rank or a negative count.
  HopPlan(Algorithm algorithm, int ranks, std::int64_t count);
  int steps() const { return steps_; }             ///< of the whole plan
  int reduce_steps() const { return steps_ / 2; }  ///< after these each element's sum is complete on one rank
  /// Those of a step, 0 to steps() - 1, without empty ones; a rank's own in the order in which it sends them.
  std::vector<Hop> step(int number) const;

  // --- closed forms, which know nothing of the steps ---
  // Elements that `rank` sends in all.
  std::int64_t sent_by(int rank) const;
  /// What a rank sends where n divides the elements: the largest of all ranks'.
  double ideal_sent() const;

 private:
  std::int64_t bound(int chunk, int chunks) const { return count_ * chunk / chunks; }
  void add(std::vector<Hop>& hops, int from, int to, std::int64_t begin, std::int64_t end, bool adds) const;
  void add_direct(std::vector<Hop>& hops, bool adds) const;
  void add_ring(std::vector<Hop>& hops, int number) const;
  void add_tree(std::vector<Hop>& hops, int number) const;
  void add_halving(std::vector<Hop>& hops, int number) const;
  void add_fold(std::vector<Hop>& hops, bool adds) const;

  Algorithm algorithm_;
  int ranks_;
  std::int64_t count_;
  int levels_ = 0;        // of the tree; of halvings
  int participants_ = 1;  // of halvings: the largest power of two up to `ranks_`
  int steps_ = 0;
};

/// A hop of an all_reduce that has just been carried out, as its receiver sees it.
struct HopEvent {
  std::uint64_t number = 0;  ///< of the call on its group
  int step = 0;              ///< of the plan
  Hop hop = {};              ///< what was sent
  Tensor received = {};      ///< (end - begin): what came
  Tensor result = {};        ///< (end - begin): what the receiver has now. To be read during the call only
};

/// Watches the hops of a group (SimOptions::observer, simulate.h). Called on the receiving ranks' threads, several at a time, for each
/// rank in the order of steps; what it throws makes the operation fail.
class HopObserver {
 public:
  virtual ~HopObserver() = default;
  virtual void on_hop(const HopEvent& event) = 0;  ///< a hop was carried out
};

}  // namespace lockstep::parallel
