// The GPTs of the benchmarks: training steps in nanoGPT's configuration for a CPU and of a wider one, and an inference.
#pragma once

#include <cstdint>

namespace bench {

struct GptShape {
  const char* row;
  std::int64_t width, heads, context, batch;
};
inline constexpr GptShape kGptShapes[] = {{"gpt_step_128", 128, 4, 64, 12}, {"gpt_step_512", 512, 8, 256, 4}};
inline constexpr GptShape kGptInference = {"gpt_inference_384", 384, 6, 64, 1};
inline constexpr std::int64_t kGptLayers = 4, kGptInferenceLayers = 6;
inline constexpr std::int64_t kGptVocabulary = 65;  // characters of samples/data/shakespeare.txt

}  // namespace bench
