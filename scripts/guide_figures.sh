#!/usr/bin/env bash
# Redraws the figures of docs/internals/ from the programs' output:
#   scripts/guide_figures.sh [BUILD [FOLDER]]     (build/release, docs/internals/figures)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$(cd "${1:-$root/build/release}" && pwd)/tools
folder=${2:-$root/docs/internals/figures}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
page=$(mktemp)
trap 'rm -f "$page"' EXIT

# Writes the n-th drawing of a page to a file of its own, on white, in the page's style.
drawing() {  # n, name
  awk -v n="$1" '
    /<svg / && ++count == n { inside = 1; sub(/<svg /, "<svg xmlns=\"http://www.w3.org/2000/svg\" "); print; print style; next }
    inside { sub(/<\/figure>/, ""); print }
    /<\/svg>/ { if (inside) exit }' \
    style="<style>svg{background:#fff}text{font:13px sans-serif;fill:#111}.c{text-anchor:middle}rect.cell,path.out{stroke:#999}path.out{fill:none}path.in{fill:#111;stroke:#111}path.adds,path.copies{fill:none;stroke:#d55e00;stroke-width:2}path.copies{stroke-dasharray:5 3}polyline{stroke-width:2}.dp{stroke:#d55e00;fill:#d55e00}.ddp{stroke:#0072b2;fill:#0072b2}polyline.dp,polyline.ddp{fill:none}polyline.dp{stroke-dasharray:6 3}text.dp,text.ddp{stroke:none}.ideal{stroke:#111;stroke-dasharray:2 4}.grid{stroke:#999;stroke-width:.5}</style>" \
    "$page" >"$folder/$2.svg"
}

"$tools/lockstep-explain" all_reduce --algorithm ring --ranks 4 --elements 12 --html "$page" >/dev/null
drawing 3 ring_step_3
drawing 4 ring_step_4
"$tools/lockstep-explain" all_reduce --algorithm halving_doubling --ranks 4 --elements 12 --html "$page" >/dev/null
drawing 2 halving_doubling_step_2
"$tools/lockstep-explain" scaling --profile "$root/docs/internals/programs/profile.json" --link 10GbE --ranks 1..64 \
  --html "$page" >/dev/null
drawing 1 scaling
