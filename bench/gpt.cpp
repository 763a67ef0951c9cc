// A training step of the GPT of samples/char_gpt.cpp: zero_grad, forward, backward, clipping, AdamW.
#include <lockstep/lockstep.h>

#include "support/gpt.h"  // of the samples
#include "support/gpt_shapes.h"
#include "support/timing.h"

namespace ls = lockstep;

int main() {
  bench::start_a_thread_once();
  ls::set_num_threads(bench::threads());
  ls::manual_seed(0);

  for (const bench::GptShape& shape : bench::kGptShapes) {
    samples::Gpt model(
        bench::kGptVocabulary,
        {.layers = bench::kGptLayers, .heads = shape.heads, .width = shape.width, .context = shape.context});
    ls::optim::AdamW optimizer(samples::groups_of(model), {.lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1});
    const ls::Tensor x = ls::randint(bench::kGptVocabulary, {shape.batch, shape.context}),
                     y = ls::randint(bench::kGptVocabulary, {shape.batch, shape.context});
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
}
