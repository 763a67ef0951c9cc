#!/usr/bin/env bash
# The library's writable variables, process-wide and thread-local, must be those that process_state.txt lists with a
# reason.
set -euo pipefail
mkdir -p "$SCRATCH" && cd "$SCRATCH"
list=$SOURCE/tests/project/process_state.txt

# objdump -t prints, per object, lines of address, seven flags, section, size, name. State is what .data, .bss, .tdata and
# .tbss hold (.data.rel.ro is constant after start), except the compiler's own: guards, references to the exception
# routine, section names. Names lose the instruction-set level, and the number that Clang adds to a part of a variable. Of
# .cu files what nvcc adds to every kernel does not count, nor what CUB keeps for itself: only names of ours, but for the
# stubs that start kernels. Nor does what fmt keeps in objects of lockstep_launch, which has it compiled in, nor
# libstdc++'s table of threads that wait for an atomic.
grep "\.o$" "$OBJECTS" | xargs -d "\n" objdump -t | sed -E 's/( _Z[^ ]*)\.[0-9]+$/\1/' | c++filt | sed -E '
  s/^.*\.dir\/(\.\/)?(.*)\.o: +file format.*/file \2/; t keep
  / \.data\.rel\.ro/ d
  s/^[0-9a-f]+ .{7} \.t(data|bss)[^[:space:]]*[[:space:]]+[0-9a-f]+ +(\.hidden )?/thread /; t names
  s/^[0-9a-f]+ .{7} \.(data|bss)[^[:space:]]*[[:space:]]+[0-9a-f]+ +(\.hidden )?/process /; t names
  d
  : names
  /^[a-z]+ (\.|DW\.ref\.|__tls_guard$|fmt::|std::__detail::__waiter_pool|guard variable for |vtable |typeinfo |VTT )/ d
  s/\[abi:cxx11\]//g; s/cpu::(native|v[234])::/cpu::/g; s/Eigen_(native|v[234])::/Eigen::/g
  : keep' |
  awk '$1 == "file" {file = $2; next} file ~ /\.cu$/ && !/^[a-z]+ lockstep::/ {next} {kind = $1; sub(/^[a-z]+ /, ""); print kind, file, $0}' | sort -u >found

sed -nE 's/^([^#].*[^ ])  # .+/\1/p' "$list" | sort -u >allowed
malformed=$(sed -E '/^(#|$)/d; /  # [^ ]/d' "$list")
new=$(comm -23 found allowed)
gone=$(comm -13 found allowed)
[ -z "$gone" ] || printf 'listed, but not in this configuration:\n%s\n' "$gone"
[ -z "$malformed" ] || printf 'lines without a reason:\n%s\n' "$malformed"
[ -z "$new" ] || printf 'state that process_state.txt does not list:\n%s\n' "$new"
echo "$(wc -l <found) variables"
[ -z "$new$malformed" ]
