// An exception on one rank while the others wait in attention, in a group of which the training mode knows by the model
// alone.
#pragma once

#include <stdexcept>
#include <string>

#include "tests/support/groups.h"

struct OneAttention : ls::nn::Module {
  ls::nn::Linear& linear = add<ls::nn::Linear>("linear", 4, 4);
  ls::Tensor forward(const ls::Tensor& x) const override {
    const ls::Tensor y = linear(x).unsqueeze(1);
    return ls::scaled_dot_product_attention(y, y, y, {.is_causal = true});
  }
};

// All ranks throw an error with the text, and where the exception was not their own, with its rank.
inline void check_failing_rank(const std::string& backend) {
  namespace par = ls::parallel;
  for (const bool gather : {false, true}) {  // messages, or a collective
    for (const bool in_backward : {false, true}) {
      with_group(backend, 4, [&](const Group& group) {
        const par::DeviceMesh mesh(group, {{"dp", 2}, {"cp", 2}});
        OneAttention net;
        par::context_parallel(net, mesh["cp"], {.gather_keys = gather});
        par::DistributedDataParallel run(net, mesh.flatten({"cp", "dp"}).group());
        const ls::Tensor x = ls::ones({1, 4, 4});
        const auto step = [&](bool fails) {
          run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor&) {
            if (fails && !in_backward) throw std::runtime_error("no more input");
            const ls::Tensor y = net(x);
            if (fails)
              y.register_hook([](const ls::Tensor&) -> ls::Tensor { throw std::runtime_error("no more input"); });
            return y.sum();
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
}
