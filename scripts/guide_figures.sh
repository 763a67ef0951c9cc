#!/usr/bin/env bash
# Redraws the figures of docs/internals/ from the programs' output:
#   scripts/guide_figures.sh [BUILD [FOLDER]]     (build/release, docs/internals/figures)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$root/build/release}" && pwd)
folder=${2:-$root/docs/internals/figures}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
explain() { "$build/tools/lockstep-explain" "$@"; }

# Writes a figure, drawn by scripts/figures/DRAWING.awk from the output of programs.
draw() {  # drawing, name, files and -v VARIABLE=VALUE
  LC_ALL=C awk -f "$root/scripts/figures/svg.awk" -f "$root/scripts/figures/$1.awk" "${@:3}" >"$folder/$2.svg"
}

# Prints the n-th drawing of page.html, and its caption before it.
drawing() {  # n, caption
  echo "drawing ${2:-}"
  awk -v n="$1" "/<svg .*role='img'/"' && ++count == n { inside = 1 }
    inside { print } /<\/svg>/ && inside { exit }' page.html
}

# Writes the drawings of pages, from standard input, below each other.
stack() { draw stack "$1" -v title="$2" -v description="$3"; }  # name, title, description

all_reduce() { explain all_reduce --ranks 4 --html page.html "$@" >log; }
all_reduce --algorithm ring --elements 12
drawing 3 | stack ring_step_3 "Ring, step 3" "Each rank sends one chunk to the next rank, which completes its sum."
drawing 4 | stack ring_step_4 "Ring, step 4" "Each rank sends the chunk whose sum it has completed."
all_reduce --algorithm halving_doubling --elements 12
drawing 2 | stack halving_doubling_step_2 "Halving and doubling, step 2" "Partners two apart exchange a quarter."

"$build/samples/logistic_regression" --strategy dp --micro-batches 4 --epochs 1 --resume no --explain >dp
draw dp dp dp
all_reduce --algorithm direct --elements 31  # the parameters of logistic regression
{
  drawing 1 "Reduce-scatter: rank r adds chunk r of all gradients"
  drawing 2 "All-gather: every rank receives all sums"
} | stack ddp "DDP: the all-reduce of gradients on four ranks" \
  "Each rank adds one chunk of all ranks' gradients, and sends the sum to all others."

scaling() { explain scaling --profile "$root/docs/internals/programs/profile.json" --link 10GbE "$@"; }
scaling --ranks 1..64 --html page.html >log
drawing 1 | stack scaling "Speed-up of DP and DDP" \
  "DDP's speed-up grows with the number of devices, DP's stays below 1."
scaling --ranks 4 --no-overlap >without
scaling --ranks 4 >with
draw buckets buckets "$root/docs/internals/programs/profile.json" without with

explain memory --ranks 4 --parameters 1000000 >memory
draw zero zero memory

tile=$(sed -n 's/.* kAttentionTile = \([0-9]*\);.*/\1/p' "$root/tensor/ops/attention_internal.h")
"$build/guide/attention_memory" 1024 >tiles
draw tiles attention_tiles -v side="$tile" -v tokens=1024 tiles

explain ring_attention --ranks 4 --zigzag --html page.html >log
drawing 1 | stack ring_attention_blocks "Ring attention in a zigzag: the step of each pair of half blocks" \
  "Rows are half blocks of queries, columns half blocks of keys; the number is the step."
{
  drawing 2 "zigzag"
  drawing 3 "plain ring"
} | stack ring_attention_steps "Ring attention: the time of each step" \
  "In a zigzag all ranks compute all the time; in the plain ring they wait for the slowest one."

explain tensor --slices 4 --ranks 2 >tensor
draw tensor tensor_slices tensor

schedule() {  # name, micro-batches, chunks, caption
  explain schedule "$1" --pp 4 --micro-batches "$2" --chunks "$3" --html page.html >log
  drawing 1 "$1: $4" |
    stack "schedule_$1" "Pipeline schedule $1" "What each of four ranks computes over time, with $2 micro-batches."
}
schedule gpipe 8 1 "forward (blue), backward (orange)"
schedule 1f1b 8 1 "forward (blue), backward (orange)"
schedule interleaved 4 2 "two chunks, the second in stronger colours"
schedule zb1p 8 1 "forward (blue), I (orange), W (grey)"

explain mesh pp=2,dp=2,tp=2 >mesh
draw mesh mesh mesh
