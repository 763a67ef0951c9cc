#!/usr/bin/env bash
# Weak symbols of a kernel object must have its level in their name; otherwise the linker could use a function compiled
# for AVX-512 on a machine, or in a level, without it.
set -euo pipefail
failed=0
checked=0
for level in $LEVELS; do
  while read -r object; do
    checked=$((checked + 1))
    shared=$(nm --defined-only "$object" | awk '$2 ~ /^[WVu]$/ {print $3}' |
      grep -vE "${#level}${level}|Eigen_${level}|^DW\.ref\.|^__clang_call_terminate$" | c++filt || true)
    [ -z "$shared" ] || { printf '%s:\n%s\n' "${object#"$BUILD/"}" "$shared"; failed=1; }
  done < <(grep "/lockstep_kernels_$level\.dir/" "$OBJECTS")
done
[ "$checked" -gt 0 ] || { echo "no kernel objects in $OBJECTS"; exit 1; }
echo "$checked kernel objects"
exit $failed
