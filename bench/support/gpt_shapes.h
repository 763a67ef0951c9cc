// The GPTs whose training steps are measured: nanoGPT's configuration for a CPU, and a wider one.
#pragma once

#include <cstdint>

namespace bench {

struct GptShape {
  const char* row;
  std::int64_t width, heads, context, batch;
};
inline constexpr GptShape kGptShapes[] = {{"gpt_step_128", 128, 4, 64, 12}, {"gpt_step_512", 512, 8, 256, 4}};
inline constexpr std::int64_t kGptLayers = 4, kGptVocabulary = 65;  // characters of samples/data/shakespeare.txt

}  // namespace bench
