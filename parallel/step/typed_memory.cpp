#include "lockstep/base/environment_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/typed_memory_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

Tensor typed_view(const Tensor& memory, std::int64_t first, std::int64_t count, DType dtype) {
  const TensorImpl& impl = memory.impl();
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(impl.storage, impl.offset + first, {count}, {1}, dtype)));
}

void fill_for_next_owner(const Tensor& memory) {
  if (environment_number("LOCKSTEP_FILL_BUFFERS", 0, 1) != 1) return;
  raw::fill(typed_view(memory, 0, bytes_of(memory), kUInt8), 0xff);  // a NaN in every floating-point dtype
}

}  // namespace lockstep::parallel
