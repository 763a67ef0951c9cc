// An exception on one rank while the others, which have other slices of the model, wait in a layer.
#pragma once

#include <stdexcept>
#include <string>

#include "tests/support/groups.h"

struct LayersInSlices : ls::nn::Module {
  ls::nn::Linear& up = add<ls::nn::Linear>("up", 8, 8);
  ls::nn::Linear& down = add<ls::nn::Linear>("down", 8, 8);
  ls::Tensor forward(const ls::Tensor& x) const override { return down(ls::gelu(up(x))); }
};

// All ranks throw an error with the text, and where the exception was not their own, with its rank.
inline void check_failing_slices(const std::string& backend) {
  namespace par = ls::parallel;
  for (const bool in_backward : {false, true}) {
    with_group(backend, 2, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"tp", 2}});
      LayersInSlices net;
      par::parallelize(net, mesh["tp"], {.plan = {{"up", par::ColwiseParallel{}}, {"down", par::RowwiseParallel{}}}});
      par::GradientAccumulation run(net, {.micro_batches = 2});
      const ls::Tensor batch = ls::ones({4, 8}).requires_grad_();
      const auto step = [&](bool fails) {
        run.backward(batch, batch, [&](const ls::Tensor& x, const ls::Tensor& y) {
          if (fails && !in_backward) throw std::runtime_error("no more input");
          const ls::Tensor out = net(x);
          if (fails)
            out.register_hook([](const ls::Tensor&) -> ls::Tensor { throw std::runtime_error("no more input"); });
          return ls::nn::mse_loss(out, y);
        });
      };
      step(false);
      std::string text;
      try {
        step(group->rank() == 1);
      } catch (const std::exception& error) {
        text = error.what();
      }
      CHECK_MESSAGE(text.find("no more input") != std::string::npos, text);
      CHECK_MESSAGE((group->rank() == 1 || text.find("rank 1") != std::string::npos), text);
    });
  }
}
