#!/usr/bin/env bash
# Opens a report file in a headless browser: no message on the console, and the lanes and numbers in the document.
set -euo pipefail
browser=$1 program=$2
tests=$(cd "$(dirname "$0")" && pwd)
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
"$program" --mode compare --epochs 2 --out run --report report.html >output.txt
failed=0
complain() { echo "$*"; failed=1; }

open() {  # page, width, further options
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --user-data-dir="$PWD/profile" \
    --enable-logging=stderr --virtual-time-budget=5000 --window-size="$2",900 "${@:3}" "file://$PWD/$1"
}
quiet() {  # log, page and width
  messages=$(grep CONSOLE "$1" || true)
  [ -z "$messages" ] || complain "messages on the console of $2: $messages"
}
for width in 1280 390; do
  open report.html "$width" --dump-dom >"dom$width.html" 2>log.txt || { complain "the browser failed:"; tail -5 log.txt; }
  quiet log.txt "report.html at $width pixels"
  grep -q 'data-ready="yes"' "dom$width.html" || complain "the script did not reach its end at $width pixels"
  for lane in 'single cpu:0' 'accumulate cpu:0' 'dp cpu:0' 'dp cpu:1' 'ddp rank 0' 'ddp rank 1'; do
    grep -q "aria-label=\"$lane\"" "dom$width.html" || complain "no lane '$lane' at $width pixels"
  done
done

# 31 parameters of 4 bytes to and from the second device in each of 30 steps, and half of two epochs' 456 rows of 30.
dom=$(cat dom1280.html)
expect() { grep -qF -- "$1" <<<"$dom" || complain "not in the document: $1"; }
expect 'cpu:0 to cpu:1: <b>124&nbsp;B</b> in 1 transfer a step'
expect 'cpu:1 to cpu:0: <b>124&nbsp;B</b> in 2 transfers a step'
expect 'cpu:0 to cpu:1: <b>1,824&nbsp;B</b>'
expect 'the median step of each strategy'
expect '✓ accumulate, dp and ddp end with the same parameters'
expect 'fc Linear'
expect 'rank 0 to rank 1: <b>124&nbsp;B</b> in 2 transfers before the first step'
expect '<table id="step-matrix-ddp">'

# The same page with made-up data and a script that drives it, which the policy allows by its hash.
driver=$(cat "$tests/report_driver.js")
hash=$(printf '%s' "$driver" | sha256sum | cut -c1-64 | tr a-f A-F | basenc --base16 -d | base64)
data=$(tr '\n' ' ' <"$tests/report_data.json" | sed 's/</\\u003c/g')
printf '<script>%s</script>\n' "$driver" >driver.html
data=$data awk '{ sub(/script-src /, "script-src '"'sha256-$hash'"' ") }
  /id="data">/ { print "<script type=\"application/json\" id=\"data\">" ENVIRON["data"] "</script>"; next }
  /^<\/body>/ { while ((getline line < "driver.html") > 0) print line }
  { print }' report.html >used.html
for look in '1280 light' '390 light' '1280 dark'; do
  read -r width theme <<<"$look"
  scheme=1
  [ "$theme" = light ] || scheme=0
  open used.html "$width" --blink-settings=preferredColorScheme=$scheme --dump-dom >used.dom 2>used.txt ||
    complain "the browser failed on used.html"
  quiet used.txt "used.html at $width pixels, $theme"
  grep -q "data-theme=\"$theme\"" used.dom || complain "the page is not $theme"
  grep -q 'data-checked="everything"' used.dom ||
    complain "at $width pixels, $theme: $(grep -o 'data-checked="[^"]*"' used.dom || echo 'the driver did not end')"
done
exit $failed
