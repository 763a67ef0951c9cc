#!/usr/bin/env bash
# Every #include line must follow layers.txt, and third-party headers may appear only in their own folders.
set -euo pipefail
cd "$SOURCE"
modules=$(sed -n 's/^\([a-z/]*\):.*/\1/p' tests/project/layers.txt)
failed=0
complain() { echo "$*"; failed=1; }

# Prints "file:line:header" for all includes under the folders given.
includes() {
  find "$@" -name '*.h' -o -name '*.cpp' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' | sort | xargs -r \
    grep -HnoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"][^>"]+' /dev/null | sed -E 's/:[[:space:]]*#[^<"]*[<"]/:/'
}

# Headers that these include are public. All others end in _internal.h.
public="lockstep.h parallel/launch/launch.h parallel/simulate/simulate.h interop/dlpack.h interop/eigen.h interop/libtorch.h"
for ((before = 0; before != ${#public};)); do
  before=${#public}
  found=$(grep -hoE '^#include "lockstep/[^"]+' $public 2>/dev/null | sed 's|.*"lockstep/||' | grep -v '^version.h$')
  public=$(printf '%s\n' $public $found | sort -u | tr '\n' ' ')
done

! grep -n parallel/launch lockstep.h || complain "lockstep.h includes a header of lockstep::launch, which is a library of its own"

checked=0
for module in $modules; do
  [ -d "$module" ] || continue
  allowed=$(sed -n "s|^$module: *||p" tests/project/layers.txt)
  while IFS=: read -r file line header; do
    checked=$((checked + 1))
    case $header in
      lockstep/version.h) continue ;;
      lockstep/lockstep.h)
        [ "$file" = interop/libtorch.h ] || complain "$file:$line: library code includes what it uses, not the umbrella" ;;
      lockstep/*/*)
        target=${header#lockstep/}
        case $target in
          parallel/*/*) target=${target#parallel/}; target=parallel/${target%%/*} ;;
          *) target=${target%%/*} ;;
        esac
        [[ " $allowed " == *" $target "* ]] || complain "$file:$line: $module may not include $target ($header)" ;;
      Eigen/*|unsupported/Eigen/*|dnnl*|oneapi/*|omp.h)
        [[ $file == tensor/cpu/* || $file:$header == interop/eigen.h:Eigen/Core ]] || complain "$file:$line: $header belongs to tensor/cpu only" ;;
      cuda*|cublas*|cudnn*|cub/*|thrust/*)
        [[ $file == tensor/cuda/* ]] || complain "$file:$line: $header belongs to tensor/cuda only" ;;
      nccl*)
        [[ $file == parallel/comm/backends/nccl* ]] || complain "$file:$line: $header belongs to parallel/comm/backends/nccl only" ;;
      png.h|jpeglib.h|jerror.h)
        [[ $file == data/codecs/* ]] || complain "$file:$line: $header belongs to data/codecs only" ;;
      gloo/*)
        [[ $file == parallel/comm/backends/gloo* ]] || complain "$file:$line: $header belongs to parallel/comm/backends/gloo only" ;;
      mpi.h)
        [[ $file == parallel/comm/backends/mpi* ]] || complain "$file:$line: $header belongs to parallel/comm/backends/mpi only" ;;
      ucc/*|ucp/*|ucs/*)
        [[ $file == parallel/comm/backends/ucc* ]] || complain "$file:$line: $header belongs to parallel/comm/backends/ucc only" ;;
      CLI/*) complain "$file:$line: the library has no command line" ;;
      iostream) complain "$file:$line: the library never prints" ;;
    esac
    case $header in
      lockstep/tensor/cpu/*|lockstep/tensor/cuda/*)
        [[ $file == tensor/* ]] || complain "$file:$line: $header is private to tensor/" ;;
    esac
  done < <(includes "$module")
done
for header in $(git ls-files $modules | grep '\.h$'); do
  is_public=no
  [[ " $public " != *" $header "* ]] || is_public=yes
  case $is_public-$header in
    yes-*_internal.h) complain "$header: a public header leads to it, so its name must not end in _internal.h" ;;
    no-*_internal.h) ;;
    no-*) complain "$header: no public header leads to it, so its name must end in _internal.h" ;;
  esac
done
[ "$checked" -gt 0 ] || complain "no #include line was found: is SOURCE right?"
echo "$checked includes checked"
exit $failed
