#!/usr/bin/env bash
# The compiler's errors for common mistakes: at most 15 lines, 18 for misspelt options, more for a data loader's, which
# name the cause.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
limit=15
failed=0

cat >umbrella.h <<'CODE'
#include "lockstep/lockstep.h"
namespace ls = lockstep;
namespace nn = lockstep::nn;
CODE

# mistake "name" words...: the program on standard input does not compile, and the message has all the words
mistake() {
  local name=$1 lines word
  shift
  cat >"$name.cpp"
  if LC_ALL=C "$CXX" -std=c++20 -Wall -Wextra -I"$SOURCE/include" -fsyntax-only "$name.cpp" 2>"$name.txt"; then
    echo "$name: compiles"; failed=1
    return
  fi
  lines=$(wc -l <"$name.txt")
  echo "$name: $lines lines of $limit"
  [ "$lines" -le $limit ] || { cat "$name.txt"; failed=1; }
  for word in "$@"; do
    grep -qF -- "$word" "$name.txt" || { echo "$name: the message has no \"$word\""; cat "$name.txt"; failed=1; }
  done
}

mistake missing_umbrella lockstep "missing_umbrella.cpp:1" <<'CODE'
int main() { lockstep::Tensor x = lockstep::ones({2, 3}); }
CODE

mistake layer_arguments Linear "M has no constructor that takes these arguments" "layer_arguments.cpp:3" <<'CODE'
#include "umbrella.h"
struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", 10);
};
Net net;  // Clang 19 looks at members only where an object is made
CODE

mistake layer_arguments_alone nn::Linear "std::int64_t in, std::int64_t out" <<'CODE'
#include "umbrella.h"
nn::Linear fc(10);
CODE

mistake forward_not_const forward override "forward_not_const.cpp:4" <<'CODE'
#include "umbrella.h"
struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", 10, 1);
  ls::Tensor forward(const ls::Tensor& x) override { return fc(x); }
};
CODE

# misspelt name option type: the same for a misspelt option, which the first 3 lines show, and the first 12 its type
misspelt() {
  local name=$1 option=$2 type=$3
  mistake "$name" "$name.cpp"
  head -n 3 "$name.txt" | grep -qF -- "$option" && head -n 12 "$name.txt" | grep -qF -- "$type" ||
    { echo "$name: the first lines do not show $option and $type"; cat "$name.txt"; failed=1; }
}

limit=18
misspelt optimizer_option learning_rate SGDOptions <<'CODE'
#include "umbrella.h"
nn::Linear fc(10, 1);
ls::optim::SGD optimizer(fc.parameters(), {.learning_rate = 0.1});
CODE

misspelt layer_option bais LinearOptions <<'CODE'
#include "umbrella.h"
nn::Linear fc(10, 1, {.bais = false});
CODE

misspelt layer_option_in_add bais LinearOptions <<'CODE'
#include "umbrella.h"
struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", 10, 1, nn::LinearOptions{.bais = false});
};
Net net;
CODE

misspelt tensor_option dtyp TensorOptions <<'CODE'
#include "umbrella.h"
ls::Tensor x = ls::zeros({2, 3}, {.dtyp = ls::kFloat64});
CODE
limit=60  # the template argument is deduced, and compilers list all candidates: Clang 22 lines, GCC 48
misspelt loader_option batchsize DataLoaderOptions <<'CODE'
#include "umbrella.h"
auto set = std::make_shared<ls::data::TensorDataset>(ls::ones({4, 2}), ls::ones({4}));
ls::data::DataLoader loader(set, {.batchsize = 32, .shuffle = true});
CODE
limit=18
misspelt typed_loader_option batchsize DataLoaderOptions <<'CODE'
#include "umbrella.h"
auto set = std::make_shared<ls::data::TensorDataset>(ls::ones({4, 2}), ls::ones({4}));
ls::data::DataLoader loader(set, ls::data::DataLoaderOptions{.batchsize = 32, .shuffle = true});
CODE
# Over several lines, the option that is wrong is named if the type of the options is written (docs/from_libtorch.md).
misspelt typed_option momentm SGDOptions <<'CODE'
#include "umbrella.h"
nn::Linear fc(10, 1);
ls::optim::SGD optimizer(fc.parameters(), ls::optim::SGDOptions{.lr = 0.1,
                                                                .momentm = 0.9,
                                                                .weight_decay = 0.1});
CODE
limit=15

limit=24  # Clang lists all operators; the first lines name the fix
mistake device_and_type "operator==" "compare type()" <<'CODE'
#include "umbrella.h"
bool on_gpu(const ls::Tensor& x) { return x.device() == ls::kCUDA; }
CODE
limit=15

mistake accessor_of_temporary "keep the tensor in a variable" <<'CODE'
#include "umbrella.h"
auto a = ls::ones({2, 3}).t().accessor<float, 2>();
CODE

mistake member_typo Tensor unsqeeze "unsqueeze" "member_typo.cpp:2" <<'CODE'
#include "umbrella.h"
ls::Tensor y = ls::ones({2, 3}).unsqeeze(0);
CODE

# A program in C++17 gets one error, which names the fix.
echo '#include "lockstep/lockstep.h"' >cxx17.cpp
if LC_ALL=C "$CXX" -std=c++17 -Wall -Wextra -I"$SOURCE/include" -fsyntax-only cxx17.cpp 2>cxx17.txt; then
  echo "cxx17: compiles"; failed=1
elif [ "$(grep -cE '(error|warning):' cxx17.txt)" != 1 ] || ! grep -q 'error:.*-std=c++20' cxx17.txt; then
  echo "cxx17: expected one error that names -std=c++20"; cat cxx17.txt; failed=1
fi

exit $failed
