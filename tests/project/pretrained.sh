#!/usr/bin/env bash
# The programs of docs/pretrained.md compile and load a file of the layout of GPT-2's: whole on one rank, in pieces on two,
# with the same losses and adapters.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
awk -v tree=. -v programs=. -f "$SOURCE/tests/project/apply_page.awk" "$SOURCE/docs/pretrained.md"
cat >write_file.cpp <<'END'
#include "gpt2.h"

// The weights of a small model as Hugging Face's files have them: transposed Conv1D, masks, a prefix.
int main() {
  ls::manual_seed(1);
  const Gpt2 model({97, 32, 48, 4, 3, 2});
  ls::StateDict file;
  for (const auto& [name, tensor] : model.state_dict()) {
    if (name.ends_with(".up") || name.ends_with(".down")) continue;
    std::string as = name;
    if (const auto at = as.find(".base"); at != std::string::npos) as.erase(at, 5);
    const bool is_conv = as.ends_with("weight") && (as.find(".c_attn") != as.npos || as.find(".c_proj") != as.npos || as.find(".c_fc") != as.npos);
    file.insert("transformer." + as, is_conv ? tensor.t().contiguous() : tensor);
  }
  for (int layer = 0; layer < 3; ++layer)
    file.insert("transformer.h." + std::to_string(layer) + ".attn.bias", ls::ones({1, 1, 32, 32}, {.dtype = ls::kUInt8}));
  ls::save(file, "model.safetensors");
}
END
library=$1
for program in gpt2_lora write_file; do
  "$CXX" -std=c++20 -O0 -Wall -Wextra -Wpedantic -Werror -I"$SOURCE/include" $program.cpp "$library" -Wl,-rpath,"$(dirname "$library")" -o $program
done
mkdir gpt2 && (cd gpt2 && ../write_file)
ranks() { "$BUILD/tools/lockstep-run" --no-prefix --nproc-per-node "$1" ./gpt2_lora gpt2 3; }
for count in 1 2; do
  ranks $count | tee losses_$count
  [ "$(grep -c '^step' losses_$count)" = 5 ]
  mv adapters.safetensors adapters_$count.safetensors
done
cmp losses_1 losses_2
cmp adapters_1.safetensors adapters_2.safetensors
first=$(sed -n 's/step 0: loss //p' losses_2) last=$(sed -n 's/step 4: loss //p' losses_2)
awk -v first="$first" -v last="$last" 'BEGIN { exit !(last < first) }'
