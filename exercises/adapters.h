// What the graders call. Each exercise's file defines the functions of its section; how they do their work, and in how many
// functions and classes more, is up to you. Nobody but you edits that file, and you edit no other.
#pragma once

#include <lockstep/lockstep.h>
#include <lockstep/parallel/simulate/simulate.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace exercises {

namespace ls = lockstep;
namespace par = lockstep::parallel;

// Thrown where there is nothing to grade yet.
struct NotDone : std::exception {
  const char* what() const noexcept override { return "not done yet"; }
};
[[noreturn]] inline void not_done() { throw NotDone(); }

// --- 1: all_reduce.cpp ---------------------------------------------------------------------------------------------------
// `t`, one-dimensional, becomes the sum over all ranks. By `send` and `recv` of the group alone.
void all_reduce_by_gather(par::ProcessGroup& group, const ls::Tensor& t);            // all to rank 0, and the sum back
void all_reduce_by_ring(par::ProcessGroup& group, const ls::Tensor& t);              // messages to rank + 1 only
void all_reduce_by_halving_doubling(par::ProcessGroup& group, const ls::Tensor& t);  // 2, 4, 8, ... ranks

// --- 2: broadcast.cpp ----------------------------------------------------------------------------------------------------
// All ranks get rank 0's parameters.
void broadcast_parameters(par::ProcessGroup& group, const ls::nn::Module& model);
// The rank whose parameters are not those of all others, on every rank the same answer; -1 where all are alike.
int find_odd_rank(par::ProcessGroup& group, const ls::nn::Module& model);

// --- 3: ddp.cpp ----------------------------------------------------------------------------------------------------------
// From now on backward() leaves in each parameter the mean of all ranks' gradients.
void average_gradients_in_backward(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model);

// --- 4: buckets.cpp ------------------------------------------------------------------------------------------------------
struct Gradient {
  std::int64_t bytes = 0;
  double seconds = 0;  // that backward computes, after the gradient before, until this one is complete
};
// How many gradients each bucket takes, in the order in which they are complete. A bucket is reduced as soon as its last
// gradient is there and the bucket before is done.
std::vector<int> choose_buckets(const std::vector<Gradient>& gradients, const par::Link& link, int ranks);

// --- 5: overlap.cpp ------------------------------------------------------------------------------------------------------
// Adds up buckets over all ranks while backward goes on.
class BucketReducer {
 public:
  virtual ~BucketReducer() = default;
  // This rank's gradients in bucket `index` are complete. Ranks may come here in different orders.
  virtual void on_ready(int index) = 0;
  // Backward is over. On return all buckets hold the sums over the ranks.
  virtual void finish() = 0;
};
std::unique_ptr<BucketReducer> make_reducer(const std::shared_ptr<par::ProcessGroup>& group,
                                            const std::vector<ls::Tensor>& buckets);

// --- 6: sampler.cpp ------------------------------------------------------------------------------------------------------
// The rows, of 0 to n - 1, that `rank` of `world` ranks visits in an epoch, in order.
std::vector<std::int64_t> rows_of_rank(std::int64_t n, int world, int rank, std::int64_t epoch, std::int64_t seed);

}  // namespace exercises
