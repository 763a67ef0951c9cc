#!/usr/bin/env bash
# Universal Ctags, as editors run it, finds every function that the library exports, with its scope: the definition, or the
# declaration of what a macro or `= default` defines. Which functions there are is known from the symbols of the object files.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"

# Kernels are compiled for several instruction sets, each in a namespace of its own: the sources say LOCKSTEP_KERNELS.
# Those of pointwise operations have no definition to find but a line of pointwise.def.
kernels=lockstep::LOCKSTEP_KERNELS
pointwise=$(sed -nE 's/^POINTWISE[A-Z_]*\(([a-z_0-9]+),.*/\1/p' "$SOURCE/tensor/ops/pointwise.def" | paste -sd '|')
grep "\.o$" "$OBJECTS" | xargs -d "\n" nm --defined-only | awk '$2 == "T" {print $3}' | c++filt -p |
  sed -nE "s/\[abi:cxx11\]//g; s/^lockstep::(cpu::(native|v[234])|cuda::(device|host))::/$kernels::/; /^lockstep::/ p" |
  grep -vE "\(anonymous|^$kernels::($pointwise)(_(second_)?derivative)?$" | sort -u >defined
(cd "$SOURCE" && ctags -R --languages=C++ --langmap=C++:+.h.cu.cuh --c++-kinds=+p --extras=+q -f - base tensor autograd nn optim data parallel interop) |
  cut -f 1 | sed 's/operator /operator/' | sort -u >found

count=$(wc -l <defined)
[ "$count" -gt 1000 ] || { echo "only $count functions: are $OBJECTS the library's objects?"; exit 1; }
missed=$(comm -23 defined found)
[ -z "$missed" ] || { printf 'ctags does not find:\n%s\n' "$missed"; exit 1; }
echo "$count functions, all of them found"
