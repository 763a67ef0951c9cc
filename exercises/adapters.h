// The functions that the graders call. Each exercise's file defines those of its section, and may define others. You edit
// that file only.
#pragma once

#include <lockstep/lockstep.h>
#include <lockstep/parallel/simulate/simulate.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace exercises {

namespace ls = lockstep;
namespace par = lockstep::parallel;

// Thrown by a function that the student has not written.
struct NotDone : std::exception {
  const char* what() const noexcept override { return "not done yet"; }
};
[[noreturn]] inline void not_done() { throw NotDone(); }

// --- 1: all_reduce.cpp ---------------------------------------------------------------------------------------------------
// The one-dimensional `t` becomes the sum over all ranks. Uses `send` and `recv` of the group only.
void all_reduce_by_gather(par::ProcessGroup& group, const ls::Tensor& t);            // to rank 0, and the sum back
void all_reduce_by_ring(par::ProcessGroup& group, const ls::Tensor& t);              // messages to rank + 1 only
void all_reduce_by_halving_doubling(par::ProcessGroup& group, const ls::Tensor& t);  // 2, 4, 8, ... ranks

// --- 2: broadcast.cpp ----------------------------------------------------------------------------------------------------
// Copies rank 0's parameters to all ranks.
void broadcast_parameters(par::ProcessGroup& group, const ls::nn::Module& model);
// Returns the rank whose parameters differ from all others', the same on every rank; -1 if all are equal.
int find_odd_rank(par::ProcessGroup& group, const ls::nn::Module& model);

// --- 3: ddp.cpp ----------------------------------------------------------------------------------------------------------
// After this call backward() stores the mean of all ranks' gradients in each parameter.
void average_gradients_in_backward(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model);

// --- 4: buckets.cpp ------------------------------------------------------------------------------------------------------
struct Gradient {
  std::int64_t bytes = 0;
  double seconds = 0;  // time of backward from the gradient before until this one is complete
};
// Returns the number of gradients in each bucket, in the order in which they become ready. A bucket is reduced as soon as its
// last gradient is ready and the bucket before is done.
std::vector<int> choose_buckets(const std::vector<Gradient>& gradients, const par::Link& link, int ranks);

// --- 5: overlap.cpp ------------------------------------------------------------------------------------------------------
// Sums buckets over all ranks during backward.
class BucketReducer {
 public:
  virtual ~BucketReducer() = default;
  // Called when this rank's gradients in bucket `index` are complete. The order may differ between ranks. Not called in a step
  // that skips the bucket on this rank: the bucket holds zeros and is reduced all the same.
  virtual void on_ready(int index) = 0;
  // Called at the end of backward. On return all buckets hold the sums over the ranks.
  virtual void finish() = 0;
};
std::unique_ptr<BucketReducer> make_reducer(const std::shared_ptr<par::ProcessGroup>& group,
                                            const std::vector<ls::Tensor>& buckets);

// --- 6: sampler.cpp ------------------------------------------------------------------------------------------------------
// Returns the samples, from 0 to n - 1, that `rank` of `world` ranks visits in an epoch, in order.
std::vector<std::int64_t> samples_of_rank(std::int64_t n, int world, int rank, std::int64_t epoch, std::int64_t seed);

// --- 9: attention.cpp ----------------------------------------------------------------------------------------------------
struct Attended {
  ls::Tensor out;       // (heads, time, dim)
  ls::Tensor log_sums;  // (heads, time): log of the sum of exp of each query's scores
};
struct AttentionGradients {
  ls::Tensor q, k, v;  // (heads, time, dim) each
};
// softmax(q k^T / sqrt(dim)) v, where query i attends to keys 0 to i. q, k and v are (heads, time, dim), f32. Only the
// scores of one tile, of `tile` queries and `tile` keys, are in memory at a time. Tiles of keys after the queries are not
// read.
Attended attention_by_tiles(const ls::Tensor& q, const ls::Tensor& k, const ls::Tensor& v, std::int64_t tile);
// The gradients of sum(grad * out), from the inputs and results of attention_by_tiles.
AttentionGradients attention_backward_by_tiles(const ls::Tensor& grad, const ls::Tensor& q, const ls::Tensor& k,
                                               const ls::Tensor& v, const Attended& forward, std::int64_t tile);

// --- 10: zero.cpp --------------------------------------------------------------------------------------------------------
// Adam for a model that every rank has, with its state sharded over the ranks: ZeRO stage 1.
class ShardedAdam {
 public:
  virtual ~ShardedAdam() = default;
  // Called on all ranks after backward on the rank's own samples. On return, every rank's parameters are those after a step
  // of Adam with the mean of all ranks' gradients.
  virtual void step() = 0;
};
std::unique_ptr<ShardedAdam> make_sharded_adam(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model,
                                               double lr);

// --- 12: ring_attention.cpp ----------------------------------------------------------------------------------------------
// A sequence is divided into as many equal sequence blocks as there are ranks. Rank i has sequence block i: its tokens,
// and their queries, keys and values, each of shape (batch, heads, tokens of the sequence block, dim), f64.
struct BlockAttention {
  ls::Tensor out;       // (batch, heads, tokens of the sequence block, dim)
  ls::Tensor log_sums;  // (batch, heads, tokens of the sequence block, 1): log of the sum of exp of each query's scores
};
// Given: softmax(q k^T / sqrt(dim)) v, for the queries of one sequence block and the keys and values of one sequence
// block. With `causal`, query i attends to keys 0 to i.
inline BlockAttention attend(const ls::Tensor& q, const ls::Tensor& k, const ls::Tensor& v, bool causal) {
  ls::Tensor scores = ls::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (causal)
    scores = ls::masked_fill(scores, ls::triu(ls::ones({q.size(-2), k.size(-2)}), 1) > 0,
                             -std::numeric_limits<double>::infinity());
  const ls::Tensor log_sums = ls::logsumexp(scores, {-1}, true);
  return {.out = ls::matmul(ls::exp(scores - log_sums), v), .log_sums = log_sums};
}
// Returns the positions of the tokens of `rank` in the whole sequence, which has `time` tokens: (time / size), int64.
ls::Tensor positions(int rank, int size, std::int64_t time);
// Returns the result of causal attention over the whole sequence, for this rank's queries. q, k and v are those of this
// rank's sequence block, and do not change. In each of size - 1 passes every rank sends keys and values to rank + 1.
ls::Tensor ring_attention(const ls::Tensor& q, const ls::Tensor& k, const ls::Tensor& v, par::ProcessGroup& group);
// Returns, on every rank, the mean loss over the tokens of all ranks. `losses`, f64, has the losses of this rank's tokens.
// The last rank has one loss fewer than the others: the last token of the sequence has no next token.
double mean_loss(const ls::Tensor& losses, par::ProcessGroup& group);

// --- 13: tensor_parallel.cpp ---------------------------------------------------------------------------------------------
// A linear layer is x W + b, where W has a row for each input and a column for each output. All tensors are f64, except those
// of sum_over_slices.

// `qkv` is the whole matrix of queries, keys and values, side by side: (width, 3 width), each with `heads` heads side by
// side. Returns the columns of `rank` of `size` ranks: heads / size consecutive heads of the queries, then the same heads of
// the keys, then of the values: (width, 3 width / size).
ls::Tensor columns_of_rank(const ls::Tensor& qkv, std::int64_t heads, int rank, int size);

// A rank's slices of an MLP: relu(x up + up_bias) down + down_bias.
struct MlpSlices {
  ls::Tensor up, up_bias;  // (width, columns), (columns): column-parallel
  ls::Tensor down;         // (columns, width): row-parallel
  ls::Tensor down_bias;    // (width), whole and the same on every rank
};
struct MlpGradients {
  ls::Tensor x, up, up_bias, down, down_bias;  // of the shapes of x and of the slices
};
// Returns the MLP's whole result on every rank. `x`, (samples, width), is the same on every rank. Sends one all-reduce.
ls::Tensor mlp_forward(const ls::Tensor& x, const MlpSlices& mlp, par::ProcessGroup& group);
// Returns the gradients of x, whole on every rank, and of this rank's slices. `grad`, (samples, width), is the gradient of
// mlp_forward's result, the same on every rank. Sends one all-reduce.
MlpGradients mlp_backward(const ls::Tensor& grad, const ls::Tensor& x, const MlpSlices& mlp, par::ProcessGroup& group);

// Returns the sum of the terms of all slices, f32, of which rank i has `terms.size()` consecutive ones: 1, 2, 4 or 8. For a
// number of slices all numbers of ranks give equal bits: pairs of neighbours are added, then pairs of pairs, and so on. The
// group's all_reduce adds the ranks' tensors in this order.
ls::Tensor sum_over_slices(const std::vector<ls::Tensor>& terms, par::ProcessGroup& group);

// --- 17: fsdp.cpp --------------------------------------------------------------------------------------------------------
struct UnitGradients {
  ls::Tensor x, parameters;  // of the shapes of the unit's input and parameters
};
// Given: a layer of the model, whose parameters are gathered together. They are one flat tensor, f32, of shape (elements).
class Unit {
 public:
  virtual ~Unit() = default;
  virtual std::int64_t elements() const = 0;
  virtual ls::Tensor initial_parameters() const = 0;  // in new memory, the same on every rank
  virtual ls::Tensor forward(const ls::Tensor& parameters, const ls::Tensor& x) = 0;
  // Needs the parameters and the input of forward, which are not stored. `grad` is the gradient of the output.
  virtual UnitGradients backward(const ls::Tensor& parameters, const ls::Tensor& x, const ls::Tensor& grad) = 0;
};
// Given: returns the gradient of this rank's mean loss with respect to the output of the last unit.
using LossGradient = std::function<ls::Tensor(const ls::Tensor& out)>;

// A model that is divided over the ranks: ZeRO stage 3, or FSDP.
class Fsdp {
 public:
  virtual ~Fsdp() = default;
  // Returns a parameter for each unit: of the unit's parameters, with zeros at the end until n divides them, part rank() of
  // n equal parts, where n is the number of ranks. An optimizer changes their values between steps.
  virtual std::vector<ls::nn::Parameter> shards() const = 0;
  // Forward and backward on this rank's samples `x`. On return grad() of each shard is the mean of all ranks' gradients.
  virtual void backward(const ls::Tensor& x, const LossGradient& loss_gradient) = 0;
};
std::unique_ptr<Fsdp> make_fsdp(const std::shared_ptr<par::ProcessGroup>& group,
                                const std::vector<std::shared_ptr<Unit>>& units);

// --- 18: strides.cpp -----------------------------------------------------------------------------------------------------
using Sizes = std::vector<std::int64_t>;
// A view of a memory. All numbers count elements.
struct View {
  Sizes shape, strides;     // of equal length
  std::int64_t offset = 0;  // address of the first element in the memory
};
View transpose(const View& x, std::size_t a, std::size_t b);  // swaps dimensions a and b
// Elements begin, begin + step, ... before `end` of dimension `dim`. 0 <= begin < end <= the size, and step >= 1.
View slice(const View& x, std::size_t dim, std::int64_t begin, std::int64_t end, std::int64_t step);
// Repeats dimensions of size 1, and adds dimensions at the front: (3, 1) expands to (2, 3, 4).
View expand(const View& x, const Sizes& shape);
// A view of x's elements, in their row-major order, with another shape of as many elements. nullopt if no strides give
// it, so that elements would have to move.
std::optional<View> reshape(const View& x, const Sizes& shape);

// --- 19: backward.cpp ----------------------------------------------------------------------------------------------------
// Given: a node of a graph of numbers.
class GraphNode {
 public:
  virtual ~GraphNode() = default;
  // Counts the nodes in the order of their creation: the inputs of a node have lower numbers than the node.
  virtual int number() const = 0;
  // The nodes of the inputs; null for an input that needs no gradient. The same node may be several inputs. A leaf has none.
  virtual const std::vector<GraphNode*>& inputs() const = 0;
  // Returns the gradient of each input, from the gradient of the result. A leaf stores its gradient, and returns none.
  virtual std::vector<double> backward(double gradient) = 0;
};
// Runs backward from `loss`, whose gradient is 1: once on each node to which edges lead, with the sum of all contributions.
// Nodes run from the newest to the oldest, but a leaf runs as soon as its gradient is complete.
void run_backward(GraphNode& loss);

// --- 20: rendezvous.cpp --------------------------------------------------------------------------------------------------
// The error of a group in which ranks are missing.
struct IncompleteGroup : std::exception {
  explicit IncompleteGroup(std::vector<int> ranks) : missing(std::move(ranks)) {}
  const char* what() const noexcept override { return "ranks are missing"; }
  std::vector<int> missing;  // in ascending order
};
// Called once by each rank that is started. `store` is empty before the first call. Returns the addresses of all ranks, by
// rank, when all have arrived. A rank waits for at most `timeout`. Either all ranks return, or all throw IncompleteGroup with
// the same missing ranks, even a rank that arrives later.
std::vector<std::string> rendezvous(par::Store& store, int rank, int size, const std::string& address,
                                    std::chrono::milliseconds timeout);

// --- 21: shard_norms.cpp -------------------------------------------------------------------------------------------------
// The parameters of a model are one flat tensor, one parameter after another, with zeros at the end until n divides its size,
// where n is the number of ranks. Each rank has part rank() of n equal parts: its shard, f64. So has the gradient.

// Scales this rank's shard of the gradient in place: if the norm of the whole gradient is greater than max_norm, it becomes
// max_norm. Returns the norm before scaling, on every rank.
double clip_shard(const ls::Tensor& gradient, double max_norm, par::ProcessGroup& group);
// A step of LARS: each parameter p, whose gradient is g, becomes p - rate |p| / |g| g. `sizes` has the elements of each
// parameter, padding not included. Changes this rank's shard of the parameters in place.
void lars_step(const ls::Tensor& parameters, const ls::Tensor& gradient, const std::vector<std::int64_t>& sizes,
               double rate, par::ProcessGroup& group);

}  // namespace exercises
