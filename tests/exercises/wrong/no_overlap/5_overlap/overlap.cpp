// The right sums without any overlap: all buckets are launched after backward.
#include "adapters.h"

namespace exercises {
namespace {

class Reducer final : public BucketReducer {
 public:
  Reducer(std::shared_ptr<par::ProcessGroup> group, std::vector<ls::Tensor> buckets)
      : group_(std::move(group)), buckets_(std::move(buckets)) {}

  void on_ready(int index) override {}
  void finish() override {
    for (const ls::Tensor& bucket : buckets_) under_way_.push_back(group_->all_reduce(bucket));
    for (const auto& work : under_way_) work->wait();
    under_way_.clear();
  }

 private:
  std::shared_ptr<par::ProcessGroup> group_;
  std::vector<ls::Tensor> buckets_;
  std::vector<std::shared_ptr<par::Work>> under_way_;
};

}  // namespace

std::unique_ptr<BucketReducer> make_reducer(const std::shared_ptr<par::ProcessGroup>& group,
                                            const std::vector<ls::Tensor>& buckets) {
  return std::make_unique<Reducer>(group, buckets);
}

}  // namespace exercises
