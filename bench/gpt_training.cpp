// Trains the GPT of samples/char_gpt.cpp in nanoGPT's configuration for a CPU and writes what PyTorch needs to do the same
// (peers/torch_gpt_training.py): initial weights, and the first character of every window of every batch.
//   bench_gpt_training --out FOLDER [--steps 2000] [--threads 1] [--file samples/data/shakespeare.txt]
//                      [--device cpu] [--bf16 0]
// Writes FOLDER/start.safetensors before training, and FOLDER/ours.json: the loss of every step, the mean loss of all
// windows of the validation part, the last tenth of the text, and the device and the type of products.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/arguments.h"
#include "support/gpt.h"   // of the samples
#include "support/text.h"  // of the samples

namespace ls = lockstep;

namespace {

constexpr std::int64_t kBatch = 12;
constexpr samples::GptOptions kOptions{};  // 4 layers, 4 heads, width 128, context 64, no dropout
constexpr double kRate = 1e-3;

struct Trainee {
  samples::Gpt model;
  ls::Device device;
  bool bf16;  // products in bf16

  // The loss on the windows of `ids` that start at `starts`.
  ls::Tensor loss(const ls::Tensor& ids, const std::vector<std::int64_t>& starts) const {
    std::vector<ls::Tensor> rows;
    for (const std::int64_t start : starts) rows.push_back(ids.narrow(0, start, kOptions.context + 1));
    const ls::Tensor windows = ls::stack(rows).to(ls::kInt64).to(device);  // (windows, context + 1)
    const ls::AutocastGuard autocast(ls::kBFloat16, bf16);
    return samples::next_character_loss(model(windows.slice(1, 0, kOptions.context)),
                                        windows.slice(1, 1, kOptions.context + 1));
  }
};

std::vector<double> train(Trainee& trainee, const ls::Tensor& ids, const ls::Tensor& batches) {
  const std::int64_t steps = batches.size(0), warm = std::clamp<std::int64_t>(steps / 10, 1, 100);
  ls::optim::AdamW optimizer(samples::groups_of(trainee.model), {.lr = kRate, .beta2 = 0.99, .weight_decay = 0.1});
  const ls::optim::LinearWarmup warmup(optimizer, {.steps = warm});
  const ls::optim::CosineAnnealingLR cosine(optimizer,
                                            {.t_max = std::max<std::int64_t>(steps - warm, 1), .eta_min = kRate / 10});
  ls::optim::SequentialLR schedule(optimizer, {&warmup, &cosine}, {warm});
  std::vector<double> losses;
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const ls::Tensor loss = trainee.loss(ids, batches[step].to_vector<std::int64_t>());
    loss.backward();
    ls::nn::clip_grad_norm_(trainee.model.parameters(), 1.0);
    optimizer.step();
    schedule.step();
    losses.push_back(loss.item<double>());
    if ((step + 1) % 100 == 0) std::printf("step %ld: loss %.4f\n", static_cast<long>(step + 1), losses.back());
  }
  return losses;
}

// The mean loss of consecutive windows without overlap.
double validate(Trainee& trainee, const ls::Tensor& ids) {
  const ls::NoGradGuard no_grad;
  trainee.model.eval();
  const std::int64_t count = (ids.numel() - 1) / kOptions.context;
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += 64) {
    std::vector<std::int64_t> starts;
    for (std::int64_t i = first; i < std::min(first + 64, count); ++i) starts.push_back(i * kOptions.context);
    sum += trainee.loss(ids, starts).item<double>() * static_cast<double>(starts.size());
  }
  return sum / static_cast<double>(count);
}

void run(const bench::Arguments& arguments) {
  const std::string out = arguments.get("out");
  if (out.empty()) throw std::invalid_argument("--out names the folder to write to; there is no default");
  ls::set_num_threads(std::stoi(arguments.get("threads", "1")));
  ls::manual_seed(0);
  const samples::Text text(arguments.get("file", LOCKSTEP_SAMPLE_DATA_DIR "/shakespeare.txt"));
  const std::int64_t held_out = text.ids().numel() / 10, rest = text.ids().numel() - held_out;
  const ls::Tensor train_ids = text.ids().narrow(0, 0, rest), validation_ids = text.ids().narrow(0, rest, held_out);

  Trainee trainee{.model{text.vocabulary(), kOptions},
                  .device = arguments.get("device", "cpu"),
                  .bf16 = arguments.get("bf16", "0") != "0"};
  const ls::Tensor batches = ls::randint(rest - kOptions.context, {std::stoll(arguments.get("steps", "2000")), kBatch});
  ls::StateDict start;
  for (const auto& [name, parameter] : trainee.model.named_parameters()) start.insert(name, parameter->detach());
  start.insert("batches", batches);
  ls::save(start, out + "/start.safetensors");

  trainee.model.to(trainee.device);
  const std::vector<double> losses = train(trainee, train_ids, batches);
  const double validation = validate(trainee, validation_ids);
  std::printf("Lockstep: validation loss %.5f\n", validation);
  std::ofstream file(out + "/ours.json");
  file << nlohmann::json{{"losses", losses},
                         {"validation", validation},
                         {"device", trainee.device.is_cuda() ? "cuda" : "cpu"},
                         {"bf16", trainee.bf16}}
              .dump()
       << '\n';
  file.close();
  if (!file) throw std::runtime_error("cannot write " + out + "/ours.json");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(bench::Arguments(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpt_training: %s\n", error.what());
    return 1;
  }
}
