// The bits of attention must not depend on the addresses of its operands, or on the number of threads.
#include "lockstep/tensor/ops/attention_internal.h"
#include "tests/tensor/same_bits.h"

namespace {

Operation attention(bool causal, double keep, bool masked) {
  const auto run = [=](const Tensors& in) {
    const ls::raw::AttentionSetting setting{
        .scale = 0.3, .causal = causal, .keep = keep, .position = {.seed = 1, .stream = 2, .offset = 3}};
    const ls::Tensor mask = masked ? in[4] : ls::Tensor();
    const ls::raw::Attended y = ls::raw::attention(in[0], in[1], in[2], mask, setting);
    const auto by = ls::raw::attention_backward(in[3], in[0], in[1], in[2], mask, y, setting, true, true, true);
    return Tensors{y.out, y.log_sums, by.q, by.k, by.v};
  };
  return {causal ? "causal attention" : masked ? "masked attention" : "attention", run};
}

}  // namespace

TEST_CASE("attention: the same bits at every offset and with any threads") {
  const Table table = {attention(false, 1, false), attention(true, 1, false), attention(true, 0.8, false),
                       attention(false, 1, true)};
  const std::vector<std::vector<std::int64_t>> sizes = {// heads, time, time_k, dim, dim_v
                                                        {1, 1, 1, 1, 1},
                                                        {2, 5, 3, 7, 9},
                                                        {3, 64, 64, 16, 16},
                                                        {2, 70, 130, 33, 17},
                                                        {5, 200, 190, 40, 40}};
  for (const ls::DType dtype : both) {
    for (const auto& size : sizes) {
      const std::int64_t heads = size[0], time = size[1], time_k = size[2], dim = size[3], dim_v = size[4];
      check_table(table, [&](double, double) {
        return Tensors{
            numbers({heads, time, dim}, {.dtype = dtype}), numbers({heads, time_k, dim}, {.dtype = dtype}, 2),
            numbers({heads, time_k, dim_v}, {.dtype = dtype}, 3), numbers({heads, time, dim_v}, {.dtype = dtype}, 4),
            numbers({heads, time, time_k}, {.dtype = dtype}, 5)};
      });
    }
  }
}
