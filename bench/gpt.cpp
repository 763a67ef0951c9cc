// Training steps of the GPT of samples/char_gpt.cpp (zero_grad, forward, backward, clipping, AdamW), and the logits of one
// sequence.
#include <lockstep/lockstep.h>

#include "support/gpt.h"  // of the samples
#include "support/gpt_shapes.h"
#include "support/timing.h"

namespace ls = lockstep;

namespace {

samples::Gpt model_of(const bench::GptShape& shape, std::int64_t layers) {
  return {bench::kGptVocabulary,
          {.layers = layers, .heads = shape.heads, .width = shape.width, .context = shape.context}};
}

ls::Tensor ids_of(const bench::GptShape& shape) {
  return ls::randint(bench::kGptVocabulary, {shape.batch, shape.context});
}

}  // namespace

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(bench::threads());
  ls::manual_seed(0);

  for (const bench::GptShape& shape : bench::kGptShapes) {
    samples::Gpt model = model_of(shape, bench::kGptLayers);
    ls::optim::AdamW optimizer(samples::groups_of(model), {.lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1});
    const ls::Tensor x = ids_of(shape), y = ids_of(shape);
    bench::measure(
        shape.row,
        [&] {
          optimizer.zero_grad();
          samples::next_character_loss(model(x), y).backward();
          ls::nn::clip_grad_norm_(model.parameters(), 1.0);
          optimizer.step();
        },
        4.0);
  }

  samples::Gpt model = model_of(bench::kGptInference, bench::kGptInferenceLayers);
  model.eval();
  const ls::NoGradGuard no_grad;
  const ls::Tensor x = ids_of(bench::kGptInference);
  bench::measure(
      bench::kGptInference.row, [&] { ls::Tensor logits = model(x); }, 2.0);
}
