#!/usr/bin/env bash
# The contract programs of tensor parallelism, pipelines and meshes print one hash for each partition, whatever the ranks.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
library=$1
for name in 11_tensor_parallel 12_pipeline 13_mesh; do
  "$CXX" -std=c++20 -O1 -I"$SOURCE/include" "$SOURCE/tests/contract/$name.cpp" "$library" -Wl,-rpath,"$(dirname "$library")" -o "$name"
done
ranks() { "$BUILD/tools/lockstep-run" --no-prefix --nproc-per-node "$@"; }
same() {  # of the last words of both texts, which are the hashes
  local want=${1##* } have=${2##* }
  echo "$3: $have, one process: $want"
  [ ${#have} = 16 ] && [ "$have" = "$want" ]
}
for sequence in "" sp; do
  want=$(./11_tensor_parallel 4 $sequence)
  cp tp.safetensors one.safetensors
  for count in 2 4; do
    same "$want" "$(ranks $count ./11_tensor_parallel 4 $sequence)" "11 on $count ranks $sequence"
    cmp one.safetensors tp.safetensors
  done
done
want=$(./12_pipeline 1f1b 8)
"$BUILD/tools/lockstep-explain" schedule zb1p --pp 2 --micro-batches 8 --csv mine.csv >explain.txt
for run in "2 gpipe" "4 1f1b" "4 zb1p" "2 interleaved" "2 mine.csv"; do
  same "$want" "$(ranks ${run% *} ./12_pipeline ${run#* } 8)" "12 with ${run#* } on ${run% *} ranks"
done
want=$(./13_mesh 3d)
same "$want" "$(ranks 2 ./13_mesh 3d tp=2)" "13 on tp=2"
same "$want" "$(ranks 4 ./13_mesh 3d fsdp=2,tp=2)" "13 on fsdp=2,tp=2"
same "$want" "$(ranks 4 ./13_mesh 3d dp=2,tp=2)" "13 on dp=2,tp=2"
same "$want" "$(ranks 4 ./13_mesh 3d pp=2,tp=2)" "13 on pp=2,tp=2"
same "$want" "$(ranks 4 ./13_mesh 3d pp=2,fsdp=2)" "13 on pp=2,fsdp=2"
same "$want" "$(ranks 8 ./13_mesh 3d pp=2,dp=2,tp=2)" "13 on pp=2,dp=2,tp=2"
for kind in zigzag ulysses; do
  same "$(ranks 4 ./13_mesh $kind cp=4)" "$(ranks 8 ./13_mesh $kind dp=2,cp=4)" "13 $kind on dp=2,cp=4"
done
