// Wrong: the parameters of the first step stay.
#include "adapters.h"

namespace exercises {
namespace {

class MyFsdp final : public Fsdp {
 public:
  MyFsdp(const std::shared_ptr<par::ProcessGroup>& group, const std::vector<std::shared_ptr<Unit>>& units)
      : group_(group), units_(units), whole_(units.size()), gathers_(units.size()) {
    for (const auto& unit : units_) {
      const std::int64_t own = (unit->elements() + group_->size() - 1) / group_->size(), begin = own * group_->rank();
      shards_.emplace_back(padded(unit->initial_parameters()).slice(0, begin, begin + own).clone());
    }
  }

  std::vector<ls::nn::Parameter> shards() const override { return shards_; }

  void backward(const ls::Tensor& x, const LossGradient& loss_gradient) override {
    const std::size_t last = units_.size() - 1;
    std::vector<ls::Tensor> inputs = {x};
    gather(0);
    for (std::size_t unit = 0; unit <= last; ++unit) {
      gathers_[unit]->wait();
      if (unit < last) gather(unit + 1);
      inputs.push_back(units_[unit]->forward(parameters(unit), inputs.back()));
    }
    ls::Tensor grad = loss_gradient(inputs.back());
    for (std::size_t unit = last + 1; unit-- > 0;) {
      gathers_[unit]->wait();
      if (unit > 0) gather(unit - 1);
      const UnitGradients gradients = units_[unit]->backward(parameters(unit), inputs[unit], grad);
      reduce(unit, gradients.parameters);
      grad = gradients.x;
    }
  }

 private:
  void gather(std::size_t unit) {
    if (gathers_[unit]) return;
    whole_[unit] = ls::empty({shards_[unit]->numel() * group_->size()});
    gathers_[unit] = group_->all_gather(whole_[unit], shards_[unit]->detach());
  }

  ls::Tensor parameters(std::size_t unit) const { return whole_[unit].slice(0, 0, units_[unit]->elements()); }

  void reduce(std::size_t unit, const ls::Tensor& gradient) {
    const ls::Tensor mean = ls::empty({shards_[unit]->numel()});
    group_->reduce_scatter(mean, padded(gradient), par::ReduceOp::kAvg)->wait();
    shards_[unit]->set_grad(mean);
  }

  // With zeros at the end until the number of ranks divides the elements.
  ls::Tensor padded(const ls::Tensor& flat) const {
    const std::int64_t size = group_->size();
    return ls::cat({flat, ls::zeros({(size - flat.numel() % size) % size})});
  }

  std::shared_ptr<par::ProcessGroup> group_;
  std::vector<std::shared_ptr<Unit>> units_;
  std::vector<ls::nn::Parameter> shards_;
  std::vector<ls::Tensor> whole_;                    // of each unit the gathered parameters with padding, or undefined
  std::vector<std::shared_ptr<par::Work>> gathers_;  // of each unit
};

}  // namespace

std::unique_ptr<Fsdp> make_fsdp(const std::shared_ptr<par::ProcessGroup>& group,
                                const std::vector<std::shared_ptr<Unit>>& units) {
  return std::make_unique<MyFsdp>(group, units);
}

}  // namespace exercises
