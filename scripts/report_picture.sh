#!/usr/bin/env bash
# Draws docs/images/report.png, the picture of README.md: the report page of the demo's perceptron, in a browser.
#   scripts/report_picture.sh [build folder]     default build/demo, which scripts/demo.sh makes; needs chromium and pngquant
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,3s/^# \?//p' "$0"; exit 0 ;; esac
samples=$(realpath "${1:-build/demo}/samples")
picture=$PWD/docs/images/report.png
browser=$(command -v chromium || command -v google-chrome) || { echo "report_picture.sh: needs chromium" >&2; exit 1; }
command -v pngquant >/dev/null || { echo "report_picture.sh: needs pngquant" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p build/demo && ln -s "$samples" build/demo/samples  # the page shows the command as a user types it
build/demo/samples/fashion_mnist_mlp --strategy compare --epochs 1 --out build/demo/runs --report build/demo/report.html >/dev/null
"$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/browser" --window-size=1200,3900 \
  --screenshot=page.png "file://$work/build/demo/report.html" 2>/dev/null
pngquant --force --nofs --output "$picture" 64 page.png  # a third of the bytes
ls -l "$picture"
