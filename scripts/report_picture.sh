#!/usr/bin/env bash
# Draws docs/images/report.png, the picture of README.md: the report page of the demo's perceptron, in a browser.
#   scripts/report_picture.sh [build folder]     default build/demo, which scripts/demo.sh makes; needs chromium
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,3s/^# \?//p' "$0"; exit 0 ;; esac
build=${1:-build/demo}
browser=$(command -v chromium || command -v google-chrome) || { echo "report_picture.sh: needs chromium" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build/samples/fashion_mnist_mlp" --strategy compare --epochs 1 --quiet --out "$work/runs" --report "$work/report.html" >/dev/null
"$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/browser" --window-size=1200,2200 \
  --screenshot=docs/images/report.png "file://$work/report.html" 2>/dev/null
ls -l docs/images/report.png
