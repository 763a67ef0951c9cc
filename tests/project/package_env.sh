# shellcheck shell=bash disable=SC2034
# Sourced by the package tests: installs into the test's own prefix.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
prefix=$SCRATCH/prefix
"$CMAKE" --install "$BUILD" --prefix "$prefix" >install.log || { cat install.log; exit 1; }
libdir=$(dirname "$(find "$prefix" -name 'liblockstep.*' | head -1)")
export LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Copied out of the tree, so that only the installed headers can be found.
cp "$SOURCE"/tests/contract/*.cpp .

# A program of the library launch.
mkdir launcher
cat >launcher/two_ranks.cpp <<'CODE'
#include <lockstep/parallel/launch/launch.h>

#include <cstdio>

int main() {
  const auto result = lockstep::parallel::launch({.nproc = 2, .command = {"sh", "-c", "exit $RANK"}});
  std::fputs(result.summary().c_str(), stdout);
  return result.exit_code == 1 && result.first_failure == 1 ? 0 : 1;
}
CODE

# The arguments of each program: alone, or as two ranks.
run_program() {
  local name=$1 program=$2
  case $name in
    03*|04*) "$prefix/bin/lockstep-run" --nproc-per-node 2 "$program" ;;
    05*) "$prefix/bin/lockstep-run" --nproc-per-node 2 "$program" shm 100000 5 ;;
    06*) # the same line from every mode, but for its first word
      { "$program" accumulate 4; "$program" dp 4; "$prefix/bin/lockstep-run" --nproc-per-node 2 --no-prefix "$program" ddp 4; } |
        tee modes | cut -d" " -f2- | sort -u >hashes
      cat modes
      [ "$(wc -l <modes)" = 3 ] && [ "$(wc -l <hashes)" = 1 ] ;;
    09*) # recomputation prints the same line
      for mode in "" bf16; do
        { "$program" $mode; "$program" checkpoint $mode; } | tee lines
        [ "$(wc -l <lines)" = 2 ] && [ "$(sort -u lines | wc -l)" = 1 ]
      done ;;
    10*) # the same weight, and the same file, from accumulation and from every stage
      run="$prefix/bin/lockstep-run --nproc-per-node 2 --no-prefix"
      "$program" 0 4 | tail -1 >lines
      cp sharded.safetensors want.safetensors
      for stage in 1 2 3 "3 4 offload"; do
        [ "$stage" != "${stage% *}" ] || stage="$stage 4"
        $run "$program" $stage | tail -1 >>lines
        cmp sharded.safetensors want.safetensors
      done
      $run "$program" 2 4 resume | tail -1
      cat lines
      [ "$(wc -l <lines)" = 5 ] && [ "$(cut -d" " -f2- lines | sort -u | wc -l)" = 1 ] ;;
    13*) # one line for all meshes of a partition
      for kind in zigzag ulysses; do
        for shape in cp=4 dp=2,cp=4 fsdp=2,cp=4; do
          "$prefix/bin/lockstep-run" --nproc-per-node $([ $shape = cp=4 ] && echo 4 || echo 8) --no-prefix "$program" $kind $shape | tail -1
        done | tee lines
        [ "$(wc -l <lines)" = 3 ] && [ "$(sort -u lines | wc -l)" = 1 ]
      done ;;
    *) "$program" ;;
  esac
}

run_programs() {
  for source in *.cpp; do
    echo "$1: ${source%.cpp}"
    run_program "${source%.cpp}" "./$2${source%.cpp}" >output 2>&1 || { tail -20 output; exit 1; }
    tail -2 output
  done
}
