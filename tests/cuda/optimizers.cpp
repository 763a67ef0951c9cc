// Optimizer steps over many parameters at once, compared with the CPU's.
#include "tests/cuda/host_accelerator.h"
#include "tests/support/testing.h"

namespace {

namespace nn = ls::nn;
namespace optim = ls::optim;

// More parameters than one call takes: of every size around the size of a block, empty ones, a view not aligned to 16
// bytes, and one that is not contiguous.
std::vector<nn::Parameter> parameters(const ls::Device& device, ls::DType dtype) {
  std::vector<nn::Parameter> out;
  const auto add = [&](const ls::Tensor& tensor) { out.emplace_back(tensor); };
  for (std::int64_t i = 0; i < 130; ++i)
    add(numbers({i % 7 == 6 ? 4000 + 37 * i : i % 5}, {.dtype = dtype}, static_cast<std::uint32_t>(i + 1)).to(device));
  add(numbers({5001}, {.dtype = dtype}, 500).to(device).slice(0, 1, 5001));
  add(numbers({60, 50}, {.dtype = dtype}, 501).to(device).transpose(0, 1));
  add(numbers({3, 3}, {.dtype = dtype == ls::kFloat32 ? ls::kFloat64 : ls::kFloat32}, 502).to(device));
  return out;
}

template <class Optimizer, class Options>
std::vector<ls::Tensor> step(const ls::Device& device, ls::DType dtype, const Options& options) {
  const std::vector<nn::Parameter> all = parameters(device, dtype);
  Optimizer optimizer(all, options);
  for (std::uint32_t steps = 0; steps < 3; ++steps) {
    optimizer.zero_grad();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const ls::Tensor& parameter = all[i].tensor();
      if (i % 11 == steps) continue;  // has no gradient in this step, and counts fewer steps
      const auto salt = static_cast<std::uint32_t>(1000 * steps + i);
      parameter.set_grad(numbers(parameter.shape(), {.dtype = parameter.dtype()}, salt).to(device));
    }
    optimizer.step();
  }
  std::vector<ls::Tensor> out;
  for (const nn::Parameter& parameter : all) out.push_back(parameter.tensor().detach().to("cpu"));
  return out;
}

template <class Optimizer, class Options>
void check_steps(const std::string& what, const Options& options) {
  const TestDevices devices;
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const auto here = step<Optimizer>("cpu", dtype, options), there = step<Optimizer>("cuda:0", dtype, options);
    for (std::size_t i = 0; i < here.size(); ++i) {
      INFO("parameter ", i);
      const bool is_narrow = here[i].dtype() == ls::kFloat32;  // the last parameter has the other dtype
      check_close(there[i], here[i], what, is_narrow ? Tolerance{2e-6, 2e-6} : Tolerance{1e-14, 1e-14});
    }
  }
}

}  // namespace

TEST_CASE(
    "one call steps many parameters: of all sizes, unaligned, strided, of two dtypes, with and without gradients") {
  check_steps<optim::SGD>("sgd", optim::SGDOptions{.lr = 0.1});
  check_steps<optim::SGD>("decay, maximize", optim::SGDOptions{.lr = 0.1, .weight_decay = 0.1, .maximize = true});
  check_steps<optim::SGD>("momentum", optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.3});
  check_steps<optim::SGD>("nesterov",
                          optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  check_steps<optim::Adam>("adam", optim::AdamOptions{.lr = 0.01});
  check_steps<optim::Adam>("adam with decay", optim::AdamOptions{.lr = 0.01, .weight_decay = 0.1});
  check_steps<optim::AdamW>("adamw", optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
  check_steps<optim::AdamW>("amsgrad", optim::AdamWOptions{.lr = 0.01, .amsgrad = true});
  check_steps<optim::RMSprop>("rmsprop", optim::RMSpropOptions{.lr = 0.01});
  // The eps of 0.1: with decay, the sum of a gradient and its parameter can be nearly 0, and a GPU rounds it differently.
  check_steps<optim::RMSprop>("momentum",
                              optim::RMSpropOptions{.lr = 0.01, .eps = 0.1, .weight_decay = 0.1, .momentum = 0.9});
  check_steps<optim::RMSprop>("centered", optim::RMSpropOptions{.lr = 0.01, .eps = 0.1, .centered = true});
  check_steps<optim::RMSprop>("both", optim::RMSpropOptions{.eps = 0.1, .momentum = 0.9, .centered = true});
  check_steps<optim::Adagrad>("adagrad", optim::AdagradOptions{.lr = 0.01, .lr_decay = 0.1, .weight_decay = 0.1});
  check_steps<optim::Lion>("lion", optim::LionOptions{.lr = 0.01, .weight_decay = 0.1});
}
