// The GPT of the samples compared with PyTorch's module with the same weights (tests/golden/golden_gpt_training.py).
#include "support/gpt.h"
#include "tests/support/testing.h"

namespace {

constexpr std::int64_t kVocabulary = 32, kBatch = 4;
constexpr samples::GptOptions kOptions{.layers = 2, .heads = 2, .width = 32, .context = 16};

// 32 well-mixed bits for an element of a stream (lowbias32 of Chris Wellons).
std::uint32_t hash_of(std::uint32_t stream, std::uint32_t element) {
  std::uint32_t h = element + stream * 0x9E3779B9u;
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  h = (h ^ (h >> 15)) * 0x846CA68Bu;
  return h ^ (h >> 16);
}

// Matrices between -1/8 and 1/8, scales between 7/8 and 9/8: multiples of 2^-18, exact in f32.
void set_weights(const samples::Gpt& model) {
  const ls::NoGradGuard no_grad;
  std::uint32_t index = 0;
  for (const auto& [name, parameter] : model.named_parameters()) {
    std::vector<double> values(static_cast<std::size_t>(parameter->numel()));
    const double middle = parameter->dim() == 1 ? 1 : 0;
    for (std::uint32_t i = 0; i < values.size(); ++i) values[i] = (hash_of(index, i) >> 16) * 0x1p-18 - 0.125 + middle;
    parameter->copy_(ls::tensor(values, {.dtype = ls::kFloat64}).reshape(parameter->shape()));
    ++index;
  }
}

// A phrase again and again, with every fourth character replaced by a random one: (batch, context + 1).
ls::Tensor batch_of(std::uint32_t number) {
  const std::string phrase = "the quick brown fox jumps over the lazy dog. ";
  ls::Tensor ids = ls::empty({kBatch, kOptions.context + 1}, {.dtype = ls::kInt64});
  std::uint32_t i = 0;
  for (std::int64_t& id : ids.span<std::int64_t>()) {
    const std::uint32_t bits = hash_of(1000 + number, i);
    id = bits % 4 == 0 ? bits / 4 % kVocabulary : phrase[(number * 7 + i) % phrase.size()] % kVocabulary;
    ++i;
  }
  return ids;
}

ls::Tensor loss_of(const samples::Gpt& model, std::uint32_t number) {
  const ls::Tensor ids = batch_of(number);
  return samples::next_character_loss(model(ids.slice(1, 0, kOptions.context)), ids.slice(1, 1, kOptions.context + 1));
}

// The loss before each of the first `steps` training steps.
std::vector<double> losses(samples::Gpt& model, std::uint32_t steps) {
  ls::optim::AdamW optimizer(samples::groups_of(model), {.lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1});
  std::vector<double> result;
  for (std::uint32_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const ls::Tensor loss = loss_of(model, step);
    loss.backward();
    ls::nn::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    result.push_back(loss.item<double>());
  }
  return result;
}

}  // namespace

TEST_CASE("every gradient of the GPT's first step is within 1e-5 of the norm of PyTorch's") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    CAPTURE(ls::name(dtype));
    samples::Gpt model(kVocabulary, kOptions);
    model.to(dtype);
    set_weights(model);
    loss_of(model, 0).backward();
    const ls::StateDict dict = golden("gpt_training");
    std::size_t compared = 0;
    for (const auto& entry : model.named_parameters()) {
      CAPTURE(entry.first);
      const ls::Tensor want = dict.at("grad/" + entry.first).to(ls::kFloat64);
      const ls::Tensor have = entry.second->grad().to(ls::kFloat64);
      REQUIRE(have.shape() == want.shape());
      CHECK((have - want).norm().item<double>() <= 1e-5 * want.norm().item<double>());
      ++compared;
    }
    CHECK(compared == dict.size() - 2);  // all entries but the losses
  }
}

TEST_CASE("the GPT's losses are PyTorch's: 20 steps within 1e-5, 200 steps within 1e-3; f64 within 1e-9") {
  for (const std::string& tag : float_tags()) {
    CAPTURE(tag);
    const std::vector<double> want = golden("gpt_training").at("losses." + tag).to_vector<double>();
    samples::Gpt model(kVocabulary, kOptions);
    model.to(dtype_named(tag));
    set_weights(model);
    const std::vector<double> have = losses(model, static_cast<std::uint32_t>(want.size()));
    REQUIRE(want.size() == 200);
    CHECK(want.back() < 0.8 * want.front());  // it learns
    for (std::size_t step = 0; step < want.size(); ++step) {
      CAPTURE(step);
      CHECK(std::abs(have[step] - want[step]) <= (tag == "f64" ? 1e-9 : step < 20 ? 1e-5 : 1e-3) * want[step]);
    }
  }
}
