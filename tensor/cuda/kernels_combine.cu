// Canonical sums over ranks and replicas: see combine_internal.h. Each element is reduced like a binary counter, so
// that any number of inputs is summed in pairs, then pairs of pairs.
#include <bit>

#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/wide_internal.h"
#include "lockstep/tensor/ops/combine_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

constexpr int kFew = 8;  // maximum inputs and outputs of the small argument
constexpr int kLevels = std::bit_width(unsigned{raw::kMaxCombined}) + 1;  // partial sums that a counter holds at most

template <class W>
DEVICE_ONLY W join(raw::CombineOp op, W a, W b) {
  switch (op) {
    case raw::CombineOp::kSum:
      return static_cast<W>(a + b);
    case raw::CombineOp::kProduct:
      return static_cast<W>(a * b);
    case raw::CombineOp::kMin:
      return a < b || a != a ? a : b;  // a NaN stays
    default:
      return a > b || a != a ? a : b;
  }
}

template <class T, int kMost>
struct CombineElement {
  const void* inputs[kMost];
  void* outputs[kMost];
  int input_count, output_count;
  std::int64_t first;
  raw::CombineOp op;
  Wide<T> scale;
  bool in_turn;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    Wide<T> sums[kLevels];
    int height = 0;
    for (int k = 0; k < input_count; ++k) {
      sums[height++] = widen(static_cast<const T*>(inputs[k])[first + i]);
      if (in_turn && k > 0) pop(sums, height);
      for (int done = k + 1; done % 2 == 0 && !in_turn; done /= 2) pop(sums, height);  // a pair is complete
    }
    while (height > 1) pop(sums, height);
    const T result = narrow<T>(scale == Wide<T>(1) ? sums[0] : static_cast<Wide<T>>(sums[0] * scale));
    for (int k = 0; k < output_count; ++k) static_cast<T*>(outputs[k])[first + i] = result;
  }
  DEVICE_ONLY void pop(Wide<T>* sums, int& height) const {
    --height;
    sums[height - 1] = join(op, sums[height - 1], sums[height]);
  }
};

template <class T, int kMost>
void run(const raw::Combine& c, std::int64_t first, std::int64_t count) {
  CombineElement<T, kMost> body{};
  body.input_count = static_cast<int>(c.inputs.size());
  body.output_count = static_cast<int>(c.outputs.size());
  for (std::size_t k = 0; k < c.inputs.size(); ++k) body.inputs[k] = c.inputs[k];
  for (std::size_t k = 0; k < c.outputs.size(); ++k) body.outputs[k] = c.outputs[k];
  body.first = first;
  body.op = c.op;
  body.scale = static_cast<Wide<T>>(c.scale);
  body.in_turn = c.in_turn;
  launch_elements("combine", count, body);
}

}  // namespace

void combine(const raw::Combine& c, std::int64_t first, std::int64_t count) {
  for_any(c.dtype, [&]<class T>(T) {
    using Number = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;  // a bool is 0 or 1
    if (c.inputs.size() <= kFew && c.outputs.size() <= kFew) return run<Number, kFew>(c, first, count);
    run<Number, raw::kMaxCombined>(c, first, count);
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
