// lockstep-explain tensor: the tensor slices of each rank of a transformer block, what the ranks send, and the order of
// sums, by the library's rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct TensorQuestion {
  int slices = 4, ranks = 2;
  std::int64_t width = 64, heads = 8;           // of the block; its MLP is four times as wide
  std::int64_t sequences = 1, positions = 128;  // of a micro-batch
};

// The columns or rows [first, first + count) of a matrix.
struct SeenRange {
  std::int64_t first = 0, count = 0;
};

// A matrix of the block, as x W: an input for each row, an output for each column.
struct SeenMatrix {
  std::string name;
  bool is_column_parallel = false;
  std::int64_t inputs = 0, outputs = 0, parts = 1;
  std::vector<std::vector<SeenRange>> of_slices;  // by slice: its columns, or its rows
};

// The sum of numbers in f32 that are added slice by slice.
struct SeenSum {
  int slices = 1;
  std::vector<int> ranks;  // each number of ranks that can share the slices; all compute the same bits
  float value = 0;
};

struct SeenTensor {
  TensorQuestion question;
  std::vector<SeenMatrix> matrices;  // in the order of forward
  std::vector<SeenSum> sums;

  int local() const { return question.slices / question.ranks; }
  std::int64_t parameters() const { return 12 * question.width * question.width; }
  // Numbers of one activation, and those that a rank sends for a sum of it over all ranks.
  std::int64_t activation() const { return question.sequences * question.positions * question.width; }
  std::int64_t sent() const { return 2 * (question.ranks - 1) * activation() / question.ranks; }
};

// Throws lockstep::InvalidArgument unless the ranks can share the slices evenly, and the slices have whole heads.
SeenTensor tensor_of(const TensorQuestion& question);
// "(s0 + s1) + (s2 + s3)"; `of` is the number of terms from `first` on.
std::string sum_expression(int first, int of);
std::string tensor_text(const SeenTensor& seen);
std::string tensor_html(const SeenTensor& seen);
