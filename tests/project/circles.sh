#!/usr/bin/env bash
# #include lines must not lead in a circle: not among files, and among components only in circles of at most 8 members. A
# component is the files of a folder that differ in "_internal" and in their extension only, such as storage.h,
# storage_internal.h and storage.cpp.
set -euo pipefail
cd "$SOURCE"
most=8

# Reads lines "from to", and prints each circle (a set whose members all lead to each other) as a line: the number of
# members, and the members. The largest circle is the first. Tarjan's algorithm.
circles() {
  awk '
    function visit(node,    count, i, next_nodes, members) {
      number[node] = lowest[node] = ++visited
      stack[++depth] = node
      count = split(leads_to[node], next_nodes)
      for (i = 1; i <= count; ++i) {
        if (!(next_nodes[i] in number)) visit(next_nodes[i])
        if (!(next_nodes[i] in done) && lowest[next_nodes[i]] < lowest[node]) lowest[node] = lowest[next_nodes[i]]
      }
      if (lowest[node] < number[node]) return
      for (count = 0; !(node in done); ++count) {
        done[stack[depth]]
        members = members " " stack[depth--]
      }
      if (count > 1) print count members
    }
    { leads_to[$1] = leads_to[$1] " " $2; nodes[NR] = $1 }
    END { for (i = 1; i <= NR; ++i) if (!(nodes[i] in number)) visit(nodes[i]) }' | sort -rn
}

includes=$(find base tensor autograd nn optim data parallel interop -type f -regex '.*\.\(h\|cpp\|cu\|cuh\|def\)' -print0 | sort -z |
  xargs -0 grep -HoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"lockstep/[^"]+' | sed -E 's|:.*"lockstep/| |')
of_files=$(circles <<<"$includes")
of_components=$(sed -E 's/\.[a-z]+( |$)/\1/g; s/_internal( |$)/\1/g' <<<"$includes" | circles)

failed=0
[ -z "$of_files" ] || { printf 'files that include each other:\n%s\n' "$of_files"; failed=1; }
largest=$(head -n 1 <<<"$of_components")
echo "$(wc -l <<<"$includes") includes; the largest circle of components: ${largest:-none}"
[ "${largest%% *}" -le $most ] 2>/dev/null || [ -z "$largest" ] || { echo "a circle of components has more than $most members"; failed=1; }
[ "$(wc -l <<<"$includes")" -gt 1000 ] || { echo "too few #include lines were found: is SOURCE right?"; failed=1; }
[[ $(printf '%s\n' 'a b' 'b c' 'c a' 'c d' 'd e' | circles) == "3 "* ]] || { echo "a circle of three is not found"; failed=1; }
exit $failed
