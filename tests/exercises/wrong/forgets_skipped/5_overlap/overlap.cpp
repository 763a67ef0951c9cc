// A bucket that this rank skips is never launched.
#include "adapters.h"

namespace exercises {
namespace {

class Reducer final : public BucketReducer {
 public:
  Reducer(std::shared_ptr<par::ProcessGroup> group, std::vector<ls::Tensor> buckets)
      : group_(std::move(group)), buckets_(std::move(buckets)), ready_(buckets_.size(), false) {}

  void on_ready(int index) override {
    ready_[static_cast<std::size_t>(index)] = true;
    while (works_.size() < buckets_.size() && ready_[works_.size()]) launch_next();
  }

  void finish() override {
    for (const auto& work : works_) work->wait();
    works_.clear();
    ready_.assign(buckets_.size(), false);
  }

 private:
  void launch_next() { works_.push_back(group_->all_reduce(buckets_[works_.size()])); }

  std::shared_ptr<par::ProcessGroup> group_;
  std::vector<ls::Tensor> buckets_;
  std::vector<bool> ready_;
  std::vector<std::shared_ptr<par::Work>> works_;  // in the order of buckets
};

}  // namespace

std::unique_ptr<BucketReducer> make_reducer(const std::shared_ptr<par::ProcessGroup>& group,
                                            const std::vector<ls::Tensor>& buckets) {
  return std::make_unique<Reducer>(group, buckets);
}

}  // namespace exercises
