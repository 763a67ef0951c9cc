// Runs operations with operands at element offsets 0 to 15 of larger buffers, with 1, 2 and 3 threads, and compares bits.
#pragma once

#include <functional>

#include "tests/support/testing.h"

using Tensors = std::vector<ls::Tensor>;

struct Operation {
  std::string name;
  std::function<Tensors(const Tensors&)> run;
  double low = -1, high = 1;  // range of the operands
};
using Table = std::vector<Operation>;

// Copies the operands to element `offset` of separate buffers; operand k starts k elements further.
inline Tensors placed(const Tensors& operands, std::int64_t offset) {
  Tensors out;
  for (const ls::Tensor& x : operands) {
    const std::int64_t start = (offset + static_cast<std::int64_t>(out.size())) % 16;
    const ls::Tensor buffer = ls::zeros({x.numel() + 32}, {.dtype = x.dtype()});
    out.push_back(buffer.narrow(0, start, x.numel()).reshape(x.shape()));
    out.back().copy_(x);
  }
  return out;
}

class Threads {
 public:
  ~Threads() { ls::set_num_threads(before_); }

 private:
  int before_ = ls::num_threads();
};

// Runs `operation` at all offsets and with all numbers of threads; returns those whose bits differ from the first.
inline std::string differing(const Operation& operation, const Tensors& original) {
  std::string out;
  std::int64_t elements = 0;
  for (const ls::Tensor& x : original) elements = std::max(elements, x.numel());
  ls::set_num_threads(1);
  const Tensors want = operation.run(placed(original, 0));
  const auto compare = [&](int threads, std::int64_t offset) {
    const Tensors have = operation.run(placed(original, offset));
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (!same_bits(have[i], want[i]))
        out += " " + std::to_string(threads) + " threads, offset " + std::to_string(offset) + ";";
    }
  };
  constexpr std::int64_t kFewOffsets[] = {0, 1, 7, 15};
  const bool is_large = elements >= 30000;  // smaller operations use one thread
  if (is_large && LOCKSTEP_SLOWDOWN > 1) {
    for (const std::int64_t offset : kFewOffsets) compare(1, offset);
  } else {
    for (std::int64_t offset = 0; offset < 16; ++offset) compare(1, offset);
  }
  for (int threads = 2; threads <= 3 && is_large; ++threads) {
    ls::set_num_threads(threads);
    for (const std::int64_t offset : kFewOffsets) compare(threads, offset);
  }
  return out;
}

// Runs every operation of `table` on `operands(low, high)`.
inline void check_table(const Table& table, const std::function<Tensors(double low, double high)>& operands) {
  const ls::NoGradGuard no_grad;
  const Threads restore;
  for (const Operation& operation : table) {
    const Tensors original = operands(operation.low, operation.high);
    const std::string where = differing(operation, original);
    CHECK_MESSAGE(where.empty(), operation.name << " of " << ls::describe(original[0]) << " differs at" << where);
  }
}

inline const std::vector<ls::DType> both = {ls::kFloat32, ls::kFloat64};
