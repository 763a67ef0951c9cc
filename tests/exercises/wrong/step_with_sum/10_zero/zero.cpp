// Wrong: the sum of the ranks' gradients.
#include "adapters.h"

namespace exercises {
namespace {

class FlatShardedAdam : public ShardedAdam {
 public:
  FlatShardedAdam(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model, double lr)
      : group_(group), parameters_(model.parameters()) {
    std::int64_t elements = 0;
    for (const ls::nn::Parameter& p : parameters_) elements += p->numel();
    own_ = (elements + group_->size() - 1) / group_->size();
    padding_ = own_ * group_->size() - elements;
    std::vector<ls::Tensor> values;
    for (const ls::nn::Parameter& p : parameters_) values.push_back(p->detach());
    const std::int64_t begin = own_ * group_->rank();
    piece_ = ls::nn::Parameter(join(values).slice(0, begin, begin + own_).clone());
    adam_ = std::make_unique<ls::optim::Adam>(std::vector{piece_}, ls::optim::AdamOptions{.lr = lr});
  }

  void step() override {
    std::vector<ls::Tensor> gradients;
    for (const ls::nn::Parameter& p : parameters_) gradients.push_back(p->grad());
    const ls::Tensor mean = ls::empty({own_}), all = ls::empty({own_ * group_->size()});
    group_->reduce_scatter(mean, join(gradients))->wait();
    piece_->set_grad(mean);
    adam_->step();
    adam_->zero_grad();
    group_->all_gather(all, piece_->detach())->wait();
    const ls::NoGradGuard no_grad;
    std::int64_t at = 0;
    for (const ls::nn::Parameter& p : parameters_) {
      p->copy_(all.slice(0, at, at + p->numel()).reshape(p->shape()));
      at += p->numel();
    }
  }

 private:
  ls::Tensor join(std::vector<ls::Tensor> tensors) const {
    for (ls::Tensor& tensor : tensors) tensor = tensor.reshape({-1});
    tensors.push_back(ls::zeros({padding_}));
    return ls::cat(tensors);
  }

  std::shared_ptr<par::ProcessGroup> group_;
  std::vector<ls::nn::Parameter> parameters_;
  std::int64_t own_ = 0, padding_ = 0;       // elements of a rank; of the padding at the end
  ls::nn::Parameter piece_{ls::zeros({1})};  // this rank's elements
  std::unique_ptr<ls::optim::Adam> adam_;
};

}  // namespace

std::unique_ptr<ShardedAdam> make_sharded_adam(const std::shared_ptr<par::ProcessGroup>& group, ls::nn::Module& model,
                                               double lr) {
  return std::make_unique<FlatShardedAdam>(group, model, lr);
}

}  // namespace exercises
