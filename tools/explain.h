// lockstep-explain all_reduce, reduce_scatter and all_gather: a collective step by step, and functions shared with
// lockstep-explain scaling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/simulate/simulate.h"

// --- collectives ----------------------------------------------------------------------------------------------------------

struct CollectiveQuestion {
  lockstep::parallel::Collective collective = lockstep::parallel::Collective::kAllReduce;
  lockstep::parallel::Algorithm algorithm = lockstep::parallel::Algorithm::kRing;
  lockstep::parallel::ReduceOp op = lockstep::parallel::ReduceOp::kSum;
  int ranks = 4;
  std::int64_t elements = 12;  // of reduce_scatter and all_gather those of all ranks together
};

// A message of the collective, and its contents.
struct SeenHop {
  int step = 0;
  lockstep::parallel::Hop hop = {};
  std::uint64_t carried = 0, had = 0;  // ranks that contributed to the message, and to the receiver's range before it
  double result = 0;                   // first element of the range after the step
  bool more_follow = false;            // the receiver gets more messages in this step
};

// A recorded collective between threads of this process.
struct SeenCollective {
  CollectiveQuestion question;
  std::vector<SeenHop> hops;        // in the order of steps
  std::vector<std::int64_t> cells;  // boundaries of the ranges, from 0 to the number of elements
  std::vector<std::int64_t> sent;   // bytes, by rank
  std::vector<double> given;        // input of each rank, the same in all its elements
  std::vector<double> results;      // first element of each rank's result; of all_gather the first of each part
  bool is_right = false;            // all results are correct
  int steps = 0, reduce_steps = 0;  // number of steps in the plan, and of those that add
  int steps_seen = 0;               // number of steps with a message
};

// The ranks that have contributed to each cell of `rank` before the first step.
std::vector<std::uint64_t> held_at_first(const SeenCollective& seen, int rank);
SeenCollective run_collective(const CollectiveQuestion& question);
std::string as_text(const SeenCollective& seen);
std::string as_html(const SeenCollective& seen);

// --- shared ---------------------------------------------------------------------------------------------------------------

// Formulas of the bytes that the busiest rank sends, as "2 (n-1) / n P", and of the number of steps.
std::string bytes_formula(lockstep::parallel::Algorithm algorithm, int ranks,
                          lockstep::parallel::Collective collective = lockstep::parallel::Collective::kAllReduce);
std::string steps_formula(lockstep::parallel::Algorithm algorithm, int ranks,
                          lockstep::parallel::Collective collective = lockstep::parallel::Collective::kAllReduce);
std::string ranks_text(std::uint64_t set);                        // "{0,2}"
std::string plural(std::int64_t count, const std::string& noun);  // "1 rank", "2 ranks", "3 meshes"
std::string escape_html(const std::string& text);
// A light colour for item `index` of `count`, under black text. The first eight are those of Okabe and Ito, which people
// with colour blindness can tell apart; with more items, hues at equal distances.
std::string colour_of(std::size_t index, std::size_t count);
// A self-contained HTML page; its content security policy forbids external content.
std::string html_page(const std::string& title, const std::string& body, const std::string& script = "");
void write_file(const std::string& path, const std::string& text);
