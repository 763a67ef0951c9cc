/// \file
/// Collectives message by message, for teaching: the messages that an algorithm sends, and an observer for them.
///
/// On the backend sim an all_reduce follows a plan of messages between the ranks' threads. The same plan determines
/// the messages, the traffic counters, and the time on a simulated network (simulation.h).
///
/// With n ranks and P bytes a rank (c elements; element i belongs to rank r where c r / n <= i < c (r+1) / n):
///     algorithm         steps                           sent by a rank
///     direct            2                               2 (n-1) / n P: each owner adds all values, and sends the sum
///     ring              2 (n-1)                         2 (n-1) / n P: sums go around, adding a rank at each step
///     tree              2 ceil(log2 n)                  P up and P for each child; rank 0 ceil(log2 n) P
///     halving_doubling  2 log2 n                        2 (n-1) / n P: half as much at each step, then twice as much
///     doubling          log2 n                          log2 n P: partners exchange all their elements at each step
/// The last two, if n is not a power of two and p is the next smaller one: n - p ranks first send all their elements to
/// a neighbour and receive the sums at the end. That takes two more steps, and those neighbours send P more.
/// (gloo and mpi sum few elements by doubling: the fewest steps.)
///
/// Direct and ring are made of two halves, which are collectives of their own: reduce_scatter, after which rank r has
/// the sum of part r of the elements, and all_gather, which sends part r of each rank r to all. Each half takes half of
/// the steps, and a rank sends (n-1) / n P in it. (Thakur, Rabenseifner, Gropp: Optimization of collective
/// communication operations in MPICH, 2005)
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::parallel {

/// The algorithm of an all_reduce. kDirect is the canonical one: each rank adds a share of the elements.
enum class Algorithm : std::uint8_t { kDirect, kRing, kTree, kHalvingDoubling, kDoubling };
const char* name(Algorithm algorithm);  ///< "ring"

/// A collective that is sent message by message.
enum class Collective : std::uint8_t { kAllReduce, kReduceScatter, kAllGather };
const char* name(Collective collective);  ///< "reduce_scatter"

/// One message, which contains elements [begin, end) of the tensor.
struct Hop {
  int from = 0;            ///< the sending rank
  int to = 0;              ///< the receiving rank
  std::int64_t begin = 0;  ///< the first element
  std::int64_t end = 0;    ///< past the last element
  bool adds = false;       ///< true: added to the receiver's elements; false: replaces them
};

/// The messages of a collective of `count` elements, in reduce_scatter and all_gather those of all parts together. A
/// rank begins a step when it has sent and received all messages of the previous step. Elements received in one step
/// are added to the rank's own in canonical order of the ranks.
class HopPlan {
 public:
  /// Throws InvalidArgument for fewer than one rank, a negative count, or an algorithm without such a half.
  HopPlan(Algorithm algorithm, int ranks, std::int64_t count, Collective collective = Collective::kAllReduce);
  /// Whether there is a plan: only kDirect and kRing have a reduce_scatter that leaves part r on rank r.
  static bool exists(Algorithm algorithm, Collective collective);
  int steps() const { return steps_; }  ///< number of steps
  int reduce_steps() const;             ///< after these each element's sum is complete on one rank, or on more
  /// Messages of a step, 0 to steps() - 1, without empty ones; those of one rank in the order in which it sends them.
  std::vector<Hop> step(int number) const;

  // --- closed forms, independent of the steps ---
  // Total number of elements that `rank` sends.
  std::int64_t sent_by(int rank) const;
  /// Maximum over all ranks of the number of elements sent, if n divides `count`.
  double ideal_sent() const;

 private:
  std::int64_t bound(int chunk, int chunks) const { return count_ * chunk / chunks; }
  void add(std::vector<Hop>& hops, int from, int to, std::int64_t begin, std::int64_t end, bool adds) const;
  void add_direct(std::vector<Hop>& hops, bool adds) const;
  void add_ring(std::vector<Hop>& hops, int number) const;
  void add_tree(std::vector<Hop>& hops, int number) const;
  void add_halving(std::vector<Hop>& hops, int number) const;
  void add_doubling(std::vector<Hop>& hops, int number) const;
  void add_fold(std::vector<Hop>& hops, bool adds) const;

  std::int64_t sent_in_half_by(int rank) const;

  Algorithm algorithm_;
  Collective collective_;
  int ranks_;
  std::int64_t count_;
  int rank_of(int participant) const;

  int levels_ = 0;        // of the tree; of halvings and doublings
  int participants_ = 1;  // of halvings and doublings: the largest power of two not above `ranks_`
  int steps_ = 0;
  int first_ = 0;  // the first step, counted in those of the all-reduce
};

/// A message of a collective with a plan, reported by its receiver after receiving it.
struct HopEvent {
  std::uint64_t number = 0;  ///< of the call on its group
  int step = 0;              ///< of the plan
  Hop hop = {};              ///< the message
  Tensor received = {};      ///< (end - begin): elements received
  Tensor result = {};        ///< (end - begin): the receiver's elements afterwards. Valid during the call only
};

/// Observes the messages of a group (SimOptions::observer, simulate.h). Called on the receiving ranks' threads,
/// possibly several at a time, for each rank in the order of steps. An exception makes the operation fail.
class HopObserver {
 public:
  virtual ~HopObserver() = default;
  virtual void on_hop(const HopEvent& event) = 0;  ///< called after a message was received
};

}  // namespace lockstep::parallel
