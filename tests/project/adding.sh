#!/usr/bin/env bash
# Follows the pages of docs/adding in a copy of the tree, compiles the copy once, and runs the programs of the pages
# and the tables of the tests.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH/tree" "$SCRATCH/programs" && cd "$SCRATCH"

# The copy has what git tracks, or without git the whole tree.
parts="lockstep.h include CMakeLists.txt base tensor autograd nn optim data parallel cmake tests/autograd tests/support docs/adding"
(cd "$SOURCE" && { git ls-files -z --cached --others --exclude-standard $parts 2>/dev/null || find $parts -type f -print0; } |
  tar cf - --null -T -) | tar xf - -C tree
pages=$(cd tree/docs/adding && ls ./*.md)
for page in $pages; do
  [ "$page" = ./README.md ] || awk -v tree=tree -v programs=programs -f "$SOURCE/tests/project/apply_page.awk" "tree/docs/adding/$page"
done

# Compiled once, with little optimisation, and with a compiler cache if there is one.
launcher=
if command -v ccache >/dev/null; then
  launcher=ccache
  export CCACHE_BASEDIR=$SCRATCH CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
fi
# The pages' sources are compiled one by one, and the others joined as in any quick build.
new=$(sed -n 's|^<!-- file: \(.*\.cpp\) -->|${CMAKE_SOURCE_DIR}/\1|p' tree/docs/adding/*.md)
echo "set_source_files_properties(" $new "PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)" >apart.cmake
"$CMAKE" -S tree -B build -G Ninja -DCMAKE_PROJECT_lockstep_INCLUDE="$SCRATCH/apart.cmake" -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_CXX_COMPILER_LAUNCHER=$launcher \
  -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_QUICK_BUILD=ON -DLOCKSTEP_WITH_CUDA=OFF -DLOCKSTEP_WITH_GLOO=OFF \
  -DLOCKSTEP_WITH_MPI=OFF -DLOCKSTEP_WITH_ONEDNN=OFF -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_SAMPLES=OFF \
  -DLOCKSTEP_BUILD_TOOLS=OFF -DLOCKSTEP_INSTALL=OFF >configure.log || { cat configure.log; exit 1; }
grep 'backend audit' configure.log || { echo "the line of backend.md has no effect"; exit 1; }
"$CMAKE" --build build --parallel 2 --target lockstep lockstep_audit >build.log 2>&1 || { tail -50 build.log; exit 1; }

compile() { $launcher "$CXX" -std=c++20 -O0 -Wall -Wextra -Itree/include "$@"; }
link="-Lbuild -llockstep -Wl,-rpath,$SCRATCH/build -pthread"
failed=0
ran=0
for program in programs/*.cpp; do
  name=$(basename "$program" .cpp)
  compile -Werror "$program" -o "programs/$name" $link || { failed=1; continue; }
  if "programs/$name"; then echo "$name: passed"; else echo "$name: FAILED ($?)"; failed=1; fi
  ran=$((ran + 1))
done
[ $ran -ge 4 ] || { echo "only $ran programs"; failed=1; }

# The operations: the tables of the gradient checks, and reverse's kernel for GPUs, compiled as C++.
golden="-DLOCKSTEP_GOLDEN_DIR=\"$SCRATCH/tree/tests/golden\" -DLOCKSTEP_SLOWDOWN=1"
mkdir -p tree/tests/golden
objects=
for test in support/main autograd/test_gradcheck_pointwise autograd/test_gradcheck_ops autograd/test_gradcheck_shaping; do
  object=$(basename $test).o
  compile -Itree $golden -c "tree/tests/$test.cpp" -o "$object"
  objects+=" $object"
done
compile $objects -o gradchecks $link -lfmt
./gradchecks --no-colors=true -tc="every*" | tee gradchecks.log || failed=1
grep -qE 'test cases: +[1-9]' gradchecks.log || { echo "no gradient check ran"; failed=1; }
# The parts of tests/cuda's launches on the host that reverse needs.
cat >reverse_for_gpus.cpp <<'END'
#include "lockstep/tensor/cuda/kernels_reverse.cu"

namespace lockstep::LOCKSTEP_KERNELS {
bool is_recording() { return false; }
void record(std::function<void()>) {}
}  // namespace lockstep::LOCKSTEP_KERNELS

int main() {
  const float in[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, expected[12] = {4, 5, 2, 3, 0, 1, 10, 11, 8, 9, 6, 7};
  float out[12] = {};
  lockstep::LOCKSTEP_KERNELS::reverse(in, out, {.outer = 2, .n = 3, .inner = 2}, lockstep::kFloat32);
  for (int i = 0; i < 12; ++i) {
    if (out[i] != expected[i]) return 1;
  }
}
END
compile -DLOCKSTEP_KERNELS=cuda::host reverse_for_gpus.cpp -o reverse_for_gpus $link
./reverse_for_gpus && echo "reverse's kernel for GPUs, on the host: passed" || { echo "reverse's kernel for GPUs is wrong"; failed=1; }
exit $failed
