// Backwards in two parts add the gradients of micro-batches in the sums of GradientSets, as joint backwards do.
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/split_backward_internal.h"
#include "lockstep/parallel/step/gradient_sets_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/random/random.h"
#include "tests/support/testing.h"

namespace {

namespace par = ls::parallel;
using ls::autograd::SplitBackward;

struct SplitNet : ls::nn::Module {
  ls::nn::Linear& up = add<ls::nn::Linear>("up", 6, 10);
  ls::nn::LayerNorm& norm = add<ls::nn::LayerNorm>("norm", 10);
  ls::nn::Dropout& dropout = add<ls::nn::Dropout>("dropout", 0.3);
  ls::nn::Linear& down = add<ls::nn::Linear>("down", 10, 6);
  ls::Tensor forward(const ls::Tensor& x) const override {
    return ls::mean(x + down(dropout(ls::gelu(norm(up(x))))) + ls::linear(ls::linear(x, up.weight), down.weight));
  }
};

// The steps of a rank: 'F' is the forward of the next micro-batch, 'I' and 'W' are the parts of its backward, and 'B'
// is a joint one. Returns the sums of the parameters' gradients, then the gradients of the inputs.
std::vector<ls::Tensor> run(const std::string& schedule, int micro_batches, ls::DType dtype) {
  ls::manual_seed(3);
  SplitNet model;
  model.to(dtype);
  const std::vector<ls::nn::Parameter> parameters = model.parameters();
  par::GradientSets sets(parameters);
  std::vector<ls::Tensor> views, inputs, losses, of_inputs;
  for (const ls::nn::Parameter& each : parameters)
    views.push_back(dtype == par::sum_dtype(dtype) ? ls::full(each->shape(), -7.0, {.dtype = dtype}) : ls::Tensor());
  sets.set_views(views);
  std::vector<SplitBackward> parts;
  std::size_t begun = 0, ended = 0;
  const auto add_gradients = [&](auto backward) {
    const int m = static_cast<int>(ended);
    sets.begin(m, micro_batches);
    backward(ended++);
    sets.end(m, micro_batches);
  };
  for (const char step : schedule) {
    if (step == 'F') {
      const ls::random::MicroBatchGuard guard(static_cast<int>(inputs.size()));
      inputs.push_back(
          numbers({4, 6}, {.dtype = dtype, .requires_grad = true}, static_cast<std::uint32_t>(inputs.size())));
      losses.push_back(model(inputs.back()));
    } else if (step == 'I') {
      const ls::Tensor loss = std::exchange(losses[begun], {});
      parts.emplace_back(loss, ls::full(loss.shape(), 4, loss.options()), inputs[begun]);
      of_inputs.push_back(parts[begun++].take_input_gradient());
    } else if (step == 'W') {
      add_gradients([&](std::size_t m) { parts[m].run(); });
    } else {
      add_gradients([&](std::size_t m) { par::weighted_backward(losses[m], 4); });
      of_inputs.push_back(inputs[ended - 1].grad());
    }
  }
  std::vector<ls::Tensor> out;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    out.push_back(sets.finish(p).clone());
    if (views[p].defined()) CHECK(parameters[p]->grad().raw_data() == views[p].raw_data());
  }
  out.insert(out.end(), of_inputs.begin(), of_inputs.end());
  return out;
}

void check_same(const std::vector<ls::Tensor>& have, const std::vector<ls::Tensor>& want) {
  REQUIRE(have.size() == want.size());
  for (std::size_t i = 0; i < have.size(); ++i) {
    CAPTURE(i);
    REQUIRE(have[i].defined());
    CHECK(same_bits(have[i], want[i]));
  }
}

}  // namespace

TEST_CASE("sums of micro-batches whose parameters' gradients come late have the bits of joint backwards") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kBFloat16}) {
    CAPTURE(ls::name(dtype));
    const std::vector<ls::Tensor> four = run("FBFBFBFB", 4, dtype);
    for (const char* const schedule : {"FIWFIWFIWFIW", "FFFIFIWIWIWW", "FFFIFIIWIWWW", "FFFFIIIIWWWW"}) {
      CAPTURE(schedule);
      check_same(run(schedule, 4, dtype), four);
    }
    check_same(run("FFIFIFIWFIWIWWW", 5, dtype), run("FBFBFBFBFB", 5, dtype));
  }
}
