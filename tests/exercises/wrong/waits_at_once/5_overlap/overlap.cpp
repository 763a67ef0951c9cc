// The right order and the right sums, but each bucket is waited for immediately.
#include "adapters.h"

namespace exercises {
namespace {

class Reducer final : public BucketReducer {
 public:
  Reducer(std::shared_ptr<par::ProcessGroup> group, std::vector<ls::Tensor> buckets)
      : group_(std::move(group)), buckets_(std::move(buckets)) {}

  void on_ready(int index) override {
    ready_[static_cast<std::size_t>(index)] = true;
    for (; next_ < buckets_.size() && ready_[next_]; ++next_) group_->all_reduce(buckets_[next_])->wait();
  }
  void finish() override {
    ready_.assign(buckets_.size(), false);
    next_ = 0;
  }

 private:
  std::shared_ptr<par::ProcessGroup> group_;
  std::vector<ls::Tensor> buckets_;
  std::vector<bool> ready_ = std::vector<bool>(buckets_.size(), false);
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<BucketReducer> make_reducer(const std::shared_ptr<par::ProcessGroup>& group,
                                            const std::vector<ls::Tensor>& buckets) {
  return std::make_unique<Reducer>(group, buckets);
}

}  // namespace exercises
