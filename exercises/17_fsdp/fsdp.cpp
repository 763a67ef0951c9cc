// Exercise 17: fully sharded data parallel. See README.md in this folder.
#include "adapters.h"

namespace exercises {
namespace {

class MyFsdp final : public Fsdp {
 public:
  MyFsdp(const std::shared_ptr<par::ProcessGroup>& group, const std::vector<std::shared_ptr<Unit>>& units)
      : group_(group), units_(units) {}

  std::vector<ls::nn::Parameter> shards() const override { not_done(); }

  // Forward through all units, backward in the opposite order.
  void backward(const ls::Tensor& x, const LossGradient& loss_gradient) override { not_done(); }

 private:
  // Launches the all-gather of a unit's parameters. Does not wait.
  void gather(std::size_t unit) { not_done(); }

  // Waits for the gather. Returns the parameters without padding.
  ls::Tensor parameters(std::size_t unit) { not_done(); }

  // Frees the gathered parameters.
  void release(std::size_t unit) { not_done(); }

  // Stores the mean of all ranks' gradients of this rank's shard.
  void reduce(std::size_t unit, const ls::Tensor& gradient) { not_done(); }

  std::shared_ptr<par::ProcessGroup> group_;
  std::vector<std::shared_ptr<Unit>> units_;
};

}  // namespace

std::unique_ptr<Fsdp> make_fsdp(const std::shared_ptr<par::ProcessGroup>& group,
                                const std::vector<std::shared_ptr<Unit>>& units) {
  return std::make_unique<MyFsdp>(group, units);
}

}  // namespace exercises
