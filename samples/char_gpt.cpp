// A character-level GPT. The model, its initial values, optimizer and form of the schedule are those of nanoGPT's CPU
// configuration (https://github.com/karpathy/nanoGPT); the default length is two epochs.
#include <lockstep/lockstep.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/evaluate.h"
#include "support/gpt.h"
#include "support/program.h"
#include "support/run.h"
#include "support/text.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
using samples::Gpt;
using samples::GptOptions;
using samples::next_character_loss;

// Samples one character at a time from the model's prediction. Positions are learned up to `context`, so a text of that
// length goes on as one that begins with its last half.
std::string generate(Gpt& model, const samples::Text& text, const GptOptions& o) {
  const ls::NoGradGuard no_grad;
  model.eval();
  std::string result;
  samples::KeyValueCache cache(model);
  std::vector<std::int64_t> ids = {text.line_end()};
  std::int64_t seen = 0;  // of ids, by the cache
  for (std::int64_t i = 0; i < o.generate; ++i) {
    if (std::ssize(ids) > o.context) {
      ids.erase(ids.begin(), ids.end() - (o.context + 1) / 2);
      cache.clear();
      seen = 0;
    }
    const ls::Tensor rest = ls::tensor(std::vector(ids.begin() + seen, ids.end()));
    seen = std::ssize(ids);
    ls::Tensor logits = cache.next(rest.to(model.embed.tokens.weight->device()).unsqueeze(0)) / o.temperature;
    if (o.top_k > 0 && o.top_k < text.vocabulary()) {
      const ls::Tensor least = ls::topk(logits, o.top_k).first.select(1, -1);
      logits = ls::masked_fill(logits, logits < least, -std::numeric_limits<double>::infinity());
    }
    ids.push_back(ls::multinomial(ls::softmax(logits, -1), 1).item<std::int64_t>());
    result += text.character(ids.back());
  }
  return result;
}

// The text in the source tree, or below the current folder if the program was moved to another machine.
std::string default_file() {
  const char* in_source_tree = LOCKSTEP_SAMPLE_DATA_DIR "/shakespeare.txt";
  return std::filesystem::exists(in_source_tree) ? in_source_tree : "samples/data/shakespeare.txt";
}

int train(const samples::Options& options) {
  const GptOptions& gpt = *options.gpt;
  if (gpt.width % gpt.heads != 0)
    throw ls::InvalidArgument(fmt::format("--heads {} does not divide --width {}; use --width {}", gpt.heads, gpt.width,
                                          (gpt.width / gpt.heads + 1) * gpt.heads));
  ls::manual_seed(static_cast<std::uint64_t>(options.seed));

  // The last tenth of the text is held out.
  const samples::Text text(options.data);
  const ls::Tensor ids = text.ids();
  const std::int64_t held_out = ids.numel() / 10, rest = ids.numel() - held_out;
  const auto train_set = std::make_shared<samples::Windows>(ids.narrow(0, 0, rest), gpt.context);
  const auto test_set = std::make_shared<samples::Windows>(ids.narrow(0, rest, held_out), gpt.context);
  const auto start_of_train = std::make_shared<samples::Windows>(ids.narrow(0, 0, held_out), gpt.context);
  ls::data::DataLoader test_loader(test_set, {.batch_size = 64});
  ls::data::DataLoader train_in_order(start_of_train, {.batch_size = 64});

  Gpt model(text.vocabulary(), gpt);
  samples::Step step(options, model);  // on one device, or as --strategy says
  ls::optim::AdamW optimizer(samples::groups_of(step.named_parameters()),
                             {.lr = options.lr, .beta2 = 0.99, .weight_decay = 0.1});
  const ls::parallel::VocabCrossEntropyLoss of_columns(model, samples::kLogits);  // a rank may have those of some
  const auto training_loss = [&](const ls::Tensor& logits, const ls::Tensor& next) {
    return of_columns(logits.flatten(0, 1), next.flatten());
  };
  ls::data::DataLoader loader = step.loader(train_set);
  // Linear warmup, then cosine decay to a tenth of the peak rate.
  const std::int64_t steps = options.epochs * loader.size(), warm = std::clamp<std::int64_t>(steps / 10, 1, 100);
  const ls::optim::LinearWarmup warmup(optimizer, {.steps = warm});
  const ls::optim::CosineAnnealingLR cosine(
      optimizer, {.t_max = std::max<std::int64_t>(steps - warm, 1), .eta_min = options.lr / 10});
  ls::optim::SequentialLR schedule(optimizer, {&warmup, &cosine}, {warm});

  samples::Run run(options, step, {.model = &model, .optimizer = &optimizer, .scheduler = &schedule}, loader.size());
  run.count_operations(static_cast<double>(gpt.context) * samples::training_operations(text.vocabulary(), gpt));
  const auto evaluate = [&](ls::data::DataLoader<>& set) {
    return step.gathered([&] { return samples::evaluate(model, next_character_loss, set); });
  };
  const ls::AutocastGuard autocast(ls::kBFloat16, gpt.bf16);  // for forward and loss; backward is not affected
  for (std::int64_t epoch = run.first_epoch(); epoch <= options.epochs; ++epoch) {
    train_set->set_epoch(epoch);
    loader.set_epoch(epoch);             // the order of the windows depends only on seed and epoch
    loader.skip(run.batches_done());     // a resumed run has already trained on some batches
    for (const auto& [x, y] : loader) {  // (batch, context) and (batch, context)
      optimizer.zero_grad();
      const ls::Tensor loss = step.backward(x, y, training_loss);
      step.clip_grad_norm_(1.0);
      optimizer.step();
      schedule.step();
      run.step_done(loss.item<double>(), step.rows(x));
      if (step.stop_requested()) return run.interrupted();
    }
    run.epoch_done(evaluate(test_loader));
  }
  const int code =
      run.finish(evaluate(train_in_order), evaluate(test_loader),
                 "the same with --resume yes --generate 1000 --temperature 0.5 (no training, other text), or\n"
                 "            --layers 6 --width 384 --heads 6 --context 256 (the larger nanoGPT)");
  step.gathered([&] {
    if (step.is_main() && !options.quiet && gpt.generate > 0) fmt::print("\n{}\n", generate(model, text, gpt));
  });
  return code;
}

int main(int argc, char** argv) {
  return samples::run_program(argc, argv,
                              {.program = "char_gpt",
                               .about = "Trains a GPT that predicts the next character of a text",
                               .data = default_file(),
                               .data_flag = "--file",
                               .data_help = "text, of which the last tenth is for testing",
                               .data_default = "samples/data/shakespeare.txt in Lockstep's sources",
                               .gpt = GptOptions{},
                               .epochs = 2,
                               .batch = 12,
                               .lr = 0.001},
                              train);
}
