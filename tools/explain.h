// lockstep-explain all_reduce: an all-reduce step by step, and functions shared with lockstep-explain scaling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/simulate/simulate.h"

// --- all_reduce -----------------------------------------------------------------------------------------------------------

struct AllReduceQuestion {
  lockstep::parallel::Algorithm algorithm = lockstep::parallel::Algorithm::kRing;
  lockstep::parallel::ReduceOp op = lockstep::parallel::ReduceOp::kSum;
  int ranks = 4;
  std::int64_t elements = 12;
};

// A message of the all-reduce, and its contents.
struct SeenHop {
  int step = 0;
  lockstep::parallel::Hop hop = {};
  std::uint64_t carried = 0, had = 0;  // ranks that contributed to the message, and to the receiver's range before it
  double result = 0;                   // first element of the range after the step
  bool more_follow = false;            // the receiver gets more messages in this step
};

// A recorded all_reduce between threads of this process.
struct SeenAllReduce {
  AllReduceQuestion question;
  std::vector<SeenHop> hops;        // in the order of steps
  std::vector<std::int64_t> cells;  // boundaries of the ranges, from 0 to the number of elements
  std::vector<std::int64_t> sent;   // bytes, by rank
  std::vector<double> given;        // input of each rank, the same in all its elements
  std::vector<double> results;      // first element of each rank's result
  bool is_right = false;            // all results are correct
  int steps = 0;                    // number of steps in the plan
  int steps_seen = 0;               // number of steps with a message
};

SeenAllReduce run_all_reduce(const AllReduceQuestion& question);
std::string as_text(const SeenAllReduce& seen);
std::string as_html(const SeenAllReduce& seen);

// --- shared ---------------------------------------------------------------------------------------------------------------

// Formulas of the bytes that the busiest rank sends, as "2 (n-1) / n P", and of the number of steps.
std::string bytes_formula(lockstep::parallel::Algorithm algorithm, int ranks);
std::string steps_formula(lockstep::parallel::Algorithm algorithm, int ranks);
std::string ranks_text(std::uint64_t set);  // "{0,2}"
std::string escape_html(const std::string& text);
// A self-contained HTML page; its content security policy forbids external content.
std::string html_page(const std::string& title, const std::string& body, const std::string& script = "");
void write_file(const std::string& path, const std::string& text);
