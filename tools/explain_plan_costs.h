// Closed forms of a training step of a GPT on a mesh: memory, bytes and seconds of a rank. lockstep-explain plan ranks
// meshes by them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/parallel/simulate/simulation.h"

namespace plan {

inline constexpr double kItemBytes = 4;  // of an f32

// GPT-2: a block has 12 h^2 + 13 h parameters. Tokens and logits share a matrix.
struct Gpt {
  std::int64_t layers = 12, width = 768, heads = 12, context = 1024, vocabulary = 50257;
  std::int64_t parameters() const;
};

// Seconds on one device.
struct Speed {
  double forward = 0, backward = 0;  // of a floating-point operation
  double optimizer = 0;              // of a parameter
};

// A step, whatever the mesh.
struct Job {
  Gpt model;
  int micro_batches = 8;
  std::int64_t sequences = 1;  // of a micro-batch
  lockstep::parallel::Link link;
  Speed speed;

  std::int64_t tokens() const { return micro_batches * sequences * model.context; }
};

// Floating-point operations of a micro-batch of the whole model.
struct Operations {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double backward() const { return backward_input + backward_weight; }
};
Operations operations_of(const Gpt& model, std::int64_t sequences);

struct Mesh {
  int pp = 1, dp = 1, fsdp = 1, cp = 1, tp = 1;
  int stage = 0;  // of ShardedDataParallel, with fsdp above 1
  lockstep::parallel::Schedule schedule = lockstep::parallel::Schedule::k1F1B;
  int chunks = 1;  // for each rank along pp

  int ranks() const { return pp * dp * fsdp * cp * tp; }
  int data_ranks() const { return dp * fsdp; }              // that share the micro-batches
  int gradient_ranks() const { return cp * data_ranks(); }  // that share the gradients of a stage
  std::string axes() const;                                 // "pp=2,dp=4"; "dp=1" without an axis
  std::string mode() const;                                 // "1f1b, stage 3"
};

// A module of the chain embed, blocks, head, on one rank of tp and cp, for one micro-batch.
struct ChainModule {
  std::int64_t parameters = 0;                                  // of this rank along tp
  std::int64_t activations = 0;                                 // bytes that it keeps for backward
  double forward = 0, backward_input = 0, backward_weight = 0;  // seconds that it computes
  double forward_messages = 0, backward_messages = 0;           // seconds of messages along tp and cp
  double tensor_bytes = 0, context_bytes = 0;                   // sent by a rank, forward and backward

  double computing() const { return forward + backward_input + backward_weight; }
};
std::vector<ChainModule> chain_of(const Job& job, const Mesh& mesh);

// The first module of each stage, and the end. The slowest stage is as fast as possible; later stages are the larger ones,
// since they hold fewer activations. Needs at least as many modules as stages.
std::vector<std::size_t> balanced_stages(const std::vector<ChainModule>& chain, int stages);

// Bytes that the busiest rank sends in a step, by axis.
struct SentBytes {
  double pipeline = 0, data = 0, context = 0, tensor = 0;
  double total() const { return pipeline + data + context + tensor; }
};

struct Estimate {
  std::int64_t memory = 0;       // bytes of the rank that needs most
  std::int64_t activations = 0;  // bytes of its activations
  double seconds = 0;            // of a step
  double idle = 0;               // share of the step in which a rank does not compute, mean over ranks
  SentBytes sent;
  std::vector<std::size_t> begins;  // of stages, in modules of the chain
};
// Requires a mesh that the library accepts for the job.
Estimate estimate(const Job& job, const Mesh& mesh);

// A reduce-scatter or an all-gather of `bytes`, by messages from each rank to each other: half of an all-reduce.
double half_seconds(const lockstep::parallel::Link& link, int ranks, double bytes);

}  // namespace plan
