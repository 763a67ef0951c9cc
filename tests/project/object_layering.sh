#!/usr/bin/env bash
# No object of a module may refer to a symbol of a module outside its row of layers.txt.
set -euo pipefail
mkdir -p "$SCRATCH" && cd "$SCRATCH"
layers=$SOURCE/tests/project/layers.txt
modules=$(sed -n 's/^\([a-z/]*\):.*/\1/p' "$layers")
failed=0

objects() { grep -E "\.dir/(\./)?$1/" "$OBJECTS" || true; }
for module in $modules; do
  objects "$module" | xargs -rd "\n" nm --undefined-only | awk '$1 == "U" {print $2}' | sort -u >"${module//\//_}.needs"
  objects "$module" | xargs -rd "\n" nm --defined-only | awk '$2 ~ /^[TDBR]$/ {print $3}' | sort -u >"${module//\//_}.defines"
done
! grep 'lockstep\.dir/.*parallel/launch/' "$OBJECTS" || { echo "the library holds objects of parallel/launch"; failed=1; }
[ -s parallel_launch.needs ] || { echo "no object files of parallel/launch in $OBJECTS"; exit 1; }
[ -s tensor.needs ] || { echo "no object files of tensor/ in $OBJECTS"; exit 1; }
for module in $modules; do
  allowed=$(sed -n "s|^$module: *||p" "$layers")
  for other in $modules; do
    [[ " $allowed " == *" $other "* ]] && continue
    crossing=$(comm -12 "${module//\//_}.needs" "${other//\//_}.defines" | c++filt)
    [ -z "$crossing" ] || { printf '%s refers to symbols of %s:\n%s\n' "$module" "$other" "$crossing"; failed=1; }
  done
done
named=$(c++filt <tensor.needs | grep 'autograd::' || true)
[ -z "$named" ] || { printf 'tensor refers to autograd:\n%s\n' "$named"; failed=1; }
exit $failed
