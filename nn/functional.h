/// \file
/// nn::functional: LibTorch's names of functions without state, `namespace F = torch::nn::functional`. Options are
/// aggregates; LibTorch's FuncOptions do not exist.
#pragma once

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/nn/layers/losses.h"
#include "lockstep/nn/layers/resize_layers.h"

namespace lockstep::nn::functional {

using lockstep::avg_pool2d, lockstep::conv2d, lockstep::conv_transpose2d, lockstep::max_pool2d, lockstep::pad;
using lockstep::cosine_similarity, lockstep::dropout, lockstep::linear, lockstep::normalize, lockstep::one_hot;
using lockstep::elu, lockstep::gelu, lockstep::hardswish, lockstep::leaky_relu, lockstep::mish, lockstep::relu;
using lockstep::layer_norm, lockstep::log_softmax, lockstep::silu, lockstep::softmax, lockstep::softplus;
using lockstep::scaled_dot_product_attention, lockstep::sigmoid, lockstep::tanh;
using nn::binary_cross_entropy, nn::binary_cross_entropy_with_logits, nn::cosine_embedding_loss, nn::cross_entropy;
using nn::huber_loss, nn::interpolate, nn::kl_div, nn::l1_loss, nn::mse_loss, nn::nll_loss, nn::smooth_l1_loss;
using nn::triplet_margin_loss;

}  // namespace lockstep::nn::functional
