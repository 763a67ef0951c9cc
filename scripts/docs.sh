#!/usr/bin/env bash
# Writes the API reference from the public headers with Doxygen. A public name without documentation is an error.
#   scripts/docs.sh           to build/docs/html
#   scripts/docs.sh FOLDER    to FOLDER/html
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/../build/docs}")
cd "$(dirname "$0")/.."
command -v doxygen >/dev/null || scripts/install_packages.sh docs
command -v doxygen >/dev/null || { echo "Doxygen is needed (package doxygen)."; exit 1; }

# Public headers are these and the headers that they include, directly or indirectly.
public="lockstep.h parallel/launch/launch.h parallel/simulate/simulate.h interop/dlpack.h interop/eigen.h interop/libtorch.h"
for ((before = 0; before != ${#public};)); do
  before=${#public}
  found=$(grep -hoE '^#include "lockstep/[^"]+' $public | sed 's|.*"lockstep/||' | grep -v '^version.h$')
  public=$(printf '%s\n' $public $found | sort -u | tr '\n' ' ')
done

mkdir -p "$out"
rm -rf "$out/html"
{
  cat docs/Doxyfile
  echo "INPUT = docs/api/index.dox $public"
  echo "OUTPUT_DIRECTORY = \"$out\""
} | doxygen -
echo "The API reference: $out/html/index.html"
