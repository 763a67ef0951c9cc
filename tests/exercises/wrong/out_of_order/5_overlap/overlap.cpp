// Buckets are launched as they become ready, so ranks start different all-reduces.
#include "adapters.h"

namespace exercises {
namespace {

class Reducer final : public BucketReducer {
 public:
  Reducer(std::shared_ptr<par::ProcessGroup> group, std::vector<ls::Tensor> buckets)
      : group_(std::move(group)), buckets_(std::move(buckets)) {}

  void on_ready(int index) override {
    under_way_.push_back(group_->all_reduce(buckets_[static_cast<std::size_t>(index)]));
  }
  void finish() override {
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
