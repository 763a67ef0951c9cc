// A step on one sequence, of which each rank has a sequence block: a rank's memory, and what it sends for attention.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;
namespace par = lockstep::parallel;
constexpr std::int64_t kWidth = 64;

struct Model : ls::nn::Module {
  ls::nn::TransformerEncoder& layers = add<ls::nn::TransformerEncoder>(
      "layers", 4, kWidth, 4, ls::nn::TransformerEncoderLayerOptions{.dim_feedforward = 4 * kWidth, .dropout = 0});
  ls::Tensor forward(const ls::Tensor& x) const override { return layers.forward(x, {.is_causal = true}); }
};

int main(int, char** argv) {  // the length of the sequence; 0: zigzag, 1: ring, 2: Ulysses
  const auto attention = static_cast<par::ContextAttention>(std::atoi(argv[2]));
  const auto group = par::init_process_group();
  ls::set_num_threads(1);
  ls::manual_seed(0);
  Model model;
  const par::DeviceMesh mesh(group, {{"cp", -1}});  // one axis: its group is the whole group
  par::context_parallel(model, mesh["cp"], {.attention = attention});
  par::DistributedDataParallel run(model, group);
  ls::Tensor x = ls::randn({1, std::atol(argv[1]), kWidth}), y = ls::roll(x, {-1}, {1});  // y: the next positions of x
  const auto own = par::split_sequence({x, y}, mesh["cp"], attention);
  x = y = {};
  const auto step = [&] {
    return run.backward(own[0], own[1], [&](auto& x, auto& y) { return ls::nn::mse_loss(model(x), y); });
  };
  step(), group->traffic().clear(), ls::reset_peak_bytes();  // the first step allocates buffers
  const double loss = step().item<double>();
  double sent = 0;
  for (const auto phase : {par::Phase::kKeysValues, par::Phase::kActivations, par::Phase::kActivationGradients})
    sent += static_cast<double>(group->traffic().bytes(phase));
  const double peak = static_cast<double>(ls::allocator_stats().peak_bytes) * 1e-6;
  if (group->rank() == 0)
    std::printf("loss %.5f, at most %6.2f MB, sends %5.2f MB for attention\n", loss, peak, sent * 1e-6);
}
