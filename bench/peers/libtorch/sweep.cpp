// The rows of bench/sweep.cpp.
#include "peer.h"

namespace fw = torch;

namespace spelt {
using Parameter = torch::Tensor;
inline void clip_grad_norm(const std::vector<Parameter>& parameters) {
  torch::nn::utils::clip_grad_norm_(parameters, 1e9);
}
inline void clear_grad(torch::Tensor& t) { t.mutable_grad() = torch::Tensor(); }
inline torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  return torch::nn::functional::linear(x, weight, bias);
}
inline torch::Tensor embedding(const torch::Tensor& ids, const torch::Tensor& table) {
  return torch::embedding(table, ids);
}
inline torch::Tensor cross_entropy(const torch::Tensor& x, const torch::Tensor& classes) {
  return torch::nn::functional::cross_entropy(x, classes);
}
inline torch::Tensor mse_loss(const torch::Tensor& x, const torch::Tensor& target) {
  return torch::nn::functional::mse_loss(x, target);
}
inline torch::Tensor l1_loss(const torch::Tensor& x, const torch::Tensor& target) {
  return torch::nn::functional::l1_loss(x, target);
}
inline torch::Tensor smooth_l1_loss(const torch::Tensor& x, const torch::Tensor& target) {
  return torch::nn::functional::smooth_l1_loss(x, target);
}
inline torch::Tensor bce(const torch::Tensor& x, const torch::Tensor& target) {
  return torch::nn::functional::binary_cross_entropy(x, target);
}
inline torch::Tensor bce_with_logits(const torch::Tensor& x, const torch::Tensor& target) {
  return torch::nn::functional::binary_cross_entropy_with_logits(x, target);
}
inline auto sgd_options() { return torch::optim::SGDOptions(1e-6).momentum(0.9); }
inline auto adam_options() { return torch::optim::AdamOptions(1e-6); }
inline auto adam_w_options() { return torch::optim::AdamWOptions(1e-6); }
inline torch::Tensor conv2d(const torch::Tensor& x, const torch::Tensor& weight, std::int64_t stride,
                            std::int64_t padding) {
  return torch::conv2d(x, weight, {}, stride, padding);
}
inline torch::Tensor batch_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  return torch::batch_norm(x, weight, bias, {}, {}, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
}
}  // namespace spelt

#include "support/sweep.h"

int main() {
  peer::set_up();
  sweep::rows();
}
