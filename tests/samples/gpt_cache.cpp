// Generation with the keys and values of earlier characters: the predictions of a forward over the whole text.
#include "support/gpt.h"
#include "tests/support/testing.h"

TEST_CASE("a cache of keys and values predicts what a forward over the text does, from every first length") {
  constexpr std::int64_t kVocabulary = 11;
  constexpr samples::GptOptions kOptions{.layers = 3, .heads = 2, .width = 16, .context = 12};
  for (const bool untied : {false, true}) {
    samples::GptOptions options = kOptions;
    options.untied = untied;
    ls::manual_seed(3);
    samples::Gpt model(kVocabulary, options);
    model.eval();
    model.to(ls::kFloat64);
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& parameter : model.parameters()) parameter->mul_(10);  // predictions that differ
    const ls::Tensor ids = ls::randint(kVocabulary, {1, options.context});
    const ls::Tensor whole = model(ids);
    samples::KeyValueCache cache(model);
    for (std::int64_t first = 1; first <= options.context; ++first) {
      cache.clear();
      CHECK(ls::allclose(cache.next(ids.slice(1, 0, first)), whole.select(1, first - 1), 1e-8, 1e-10));
      for (std::int64_t at = first; at < options.context; ++at)
        CHECK(ls::allclose(cache.next(ids.slice(1, at, at + 1)), whole.select(1, at), 1e-8, 1e-10));
    }
    CHECK(contains(error_of<ls::Error>([&] { cache.next(ids.slice(1, 0, 1)); }), "positions"));  // beyond the context
  }
}

TEST_CASE("without the cache the model computes as before") {
  samples::Gpt model(5, {.layers = 1, .heads = 1, .width = 4, .context = 4});
  model.eval();
  const ls::Tensor ids = ls::tensor({1, 2, 3}, {.dtype = ls::kInt64}).unsqueeze(0);
  const ls::Tensor before = model(ids);
  {
    samples::KeyValueCache cache(model);
    cache.next(ids);
  }
  CHECK(ls::equal(model(ids), before));
}
