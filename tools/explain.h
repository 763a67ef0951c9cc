// What lockstep-explain shows: collectives step by step, and what links make of the step time of training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/simulate/simulate.h"

// --- all_reduce -----------------------------------------------------------------------------------------------------------

struct AllReduceQuestion {
  lockstep::parallel::Algorithm algorithm = lockstep::parallel::Algorithm::kRing;
  lockstep::parallel::ReduceOp op = lockstep::parallel::ReduceOp::kSum;
  int ranks = 4;
  std::int64_t elements = 12;
};

// A message that was really sent, and what it carried.
struct SeenHop {
  int step = 0;
  lockstep::parallel::Hop hop = {};
  std::uint64_t carried = 0, had = 0;  // sets of ranks whose numbers are in it, before the hop
  double result = 0;                   // the first element of the range, when the step is done
  bool more_follow = false;            // in this step, to this receiver
};

// An all_reduce that has taken place between threads of this process.
struct SeenAllReduce {
  AllReduceQuestion question;
  std::vector<SeenHop> hops;        // in the order of steps
  std::vector<std::int64_t> cells;  // where ranges begin or end, from 0 to the number of elements
  std::vector<std::int64_t> sent;   // bytes, by rank
  std::vector<double> given;        // each rank's number, the same in all its elements
  std::vector<double> results;      // each rank's first element
  bool is_right = false;            // all elements of all ranks are what the numbers give
  int steps = 0;                    // of the plan ...
  int steps_seen = 0;               // ... and those in which something was sent
};

SeenAllReduce run_all_reduce(const AllReduceQuestion& question);
std::string as_text(const SeenAllReduce& seen);
std::string as_html(const SeenAllReduce& seen);

// --- shared ---------------------------------------------------------------------------------------------------------------

// "2 (n-1) / n P", and what comes out: of the bytes that a rank sends, and of the steps.
std::string bytes_formula(lockstep::parallel::Algorithm algorithm, int ranks);
std::string steps_formula(lockstep::parallel::Algorithm algorithm, int ranks);
std::string ranks_text(std::uint64_t set);  // "{0,2}"
std::string escape_html(const std::string& text);
// A whole page without anything from elsewhere, which the browser enforces.
std::string html_page(const std::string& title, const std::string& body, const std::string& script = "");
void write_file(const std::string& path, const std::string& text);
