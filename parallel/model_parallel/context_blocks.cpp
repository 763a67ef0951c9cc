#include "lockstep/parallel/model_parallel/context_blocks_internal.h"

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

const char* name_of(ContextAttention attention) {
  constexpr const char* kNames[] = {"kRingZigzag", "kRing", "kUlysses"};
  return kNames[static_cast<std::size_t>(attention)];
}

BlockPair SequenceBlocks::pair(int queries_of, int keys_of, std::int64_t time, bool causal) const {
  const BlockPair all{0, time, time, false}, none{};
  if (!causal) return all;
  if (queries_of == keys_of) return {0, time, time, true};
  if (!is_zigzag) return keys_of < queries_of ? all : none;
  // An earlier rank's first half block is before both of ours, its second one behind both. Both half blocks of a later
  // rank are between ours.
  return keys_of < queries_of ? BlockPair{0, time, time / 2, false} : BlockPair{time / 2, time / 2, time, false};
}

Tensor of_all_ranks(ProcessGroup& group, const Tensor& own, Phase phase, std::string_view name) {
  Shape shape = own.shape();
  shape.insert(0, group.size());
  const Tensor all = raw::empty(shape, own.options());
  group.all_gather(all, own, {.phase = phase, .name = name})->wait();
  return all;
}

Tensor SequenceBlocks::part(const Tensor& x, std::int64_t dim, int block) const {
  const std::int64_t each = x.size(dim) / parts();
  const Tensor first = x.narrow(dim, block * each, each);
  return is_zigzag ? cat({first, x.narrow(dim, (parts() - 1 - block) * each, each)}, dim) : first;
}

}  // namespace lockstep::parallel
