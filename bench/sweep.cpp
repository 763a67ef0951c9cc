// A sweep over operations and sizes; peers/libtorch/sweep.cpp has the same rows.
#include <lockstep/lockstep.h>

namespace fw = lockstep;

namespace spelt {
using Parameter = fw::nn::Parameter;
inline void clip_grad_norm(const std::vector<Parameter>& parameters) { fw::nn::clip_grad_norm_(parameters, 1e9); }
inline void clear_grad(fw::Tensor& t) { t.set_grad({}); }
inline fw::Tensor linear(const fw::Tensor& x, const fw::Tensor& weight, const fw::Tensor& bias) {
  return fw::linear(x, weight, bias);
}
inline fw::Tensor embedding(const fw::Tensor& ids, const fw::Tensor& table) { return fw::index_select(table, 0, ids); }
inline fw::Tensor cross_entropy(const fw::Tensor& x, const fw::Tensor& classes) {
  return fw::nn::cross_entropy(x, classes);
}
inline fw::Tensor mse_loss(const fw::Tensor& x, const fw::Tensor& target) { return fw::nn::mse_loss(x, target); }
inline fw::Tensor l1_loss(const fw::Tensor& x, const fw::Tensor& target) { return fw::nn::l1_loss(x, target); }
inline fw::Tensor smooth_l1_loss(const fw::Tensor& x, const fw::Tensor& target) {
  return fw::nn::smooth_l1_loss(x, target);
}
inline fw::Tensor bce(const fw::Tensor& x, const fw::Tensor& target) { return fw::nn::binary_cross_entropy(x, target); }
inline fw::Tensor bce_with_logits(const fw::Tensor& x, const fw::Tensor& target) {
  return fw::nn::binary_cross_entropy_with_logits(x, target);
}
inline auto sgd_options() { return fw::optim::SGDOptions{.lr = 1e-6, .momentum = 0.9}; }
inline auto adam_options() { return fw::optim::AdamOptions{.lr = 1e-6}; }
inline auto adam_w_options() { return fw::optim::AdamWOptions{.lr = 1e-6}; }
inline fw::Tensor conv2d(const fw::Tensor& x, const fw::Tensor& weight, std::int64_t stride, std::int64_t padding) {
  return fw::conv2d(x, weight, {}, stride, padding);
}
inline fw::Tensor batch_norm(const fw::Tensor& x, const fw::Tensor& weight, const fw::Tensor& bias) {
  return fw::batch_norm(x, weight, bias, {}, {}, /*training=*/true);
}
}  // namespace spelt

#include "support/sweep.h"

int main() {
  bench::start_a_thread_once();
  fw::set_num_threads(bench::threads());
  fw::manual_seed(0);
  sweep::rows();
}
