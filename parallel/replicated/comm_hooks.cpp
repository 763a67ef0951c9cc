#include "lockstep/parallel/replicated/comm_hooks.h"

#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

class AllReduceHook final : public CommHook {
 public:
  std::shared_ptr<Work> start(const GradBucket& bucket, ProcessGroup& group) override {
    return group.all_reduce(bucket.buffer, ReduceOp::kAvg);
  }
  std::string describe() const override { return "allreduce_hook"; }
};

class CastHook final : public CommHook {
 public:
  explicit CastHook(DType dtype) : dtype_(dtype) {}

  std::shared_ptr<Work> start(const GradBucket& bucket, ProcessGroup& group) override {
    const Tensor narrow = raw::to(bucket.buffer, dtype_);
    return then(group.all_reduce(narrow, ReduceOp::kAvg),
                [narrow, out = bucket.buffer] { raw::copy(raw::to(narrow, out.dtype()), out); });
  }
  std::string describe() const override { return dtype_ == kFloat16 ? "fp16_compress_hook" : "bf16_compress_hook"; }

 private:
  DType dtype_;
};

}  // namespace

std::shared_ptr<CommHook> allreduce_hook() { return std::make_shared<AllReduceHook>(); }
std::shared_ptr<CommHook> fp16_compress_hook() { return std::make_shared<CastHook>(kFloat16); }
std::shared_ptr<CommHook> bf16_compress_hook() { return std::make_shared<CastHook>(kBFloat16); }

}  // namespace lockstep::parallel
