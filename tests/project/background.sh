#!/usr/bin/env bash
# Background runs of .ci/run (.ci/background.sh): a failure is printed and ends the caller, and no process is left.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
fail() { echo "FAILED: $*"; exit 1; }
is_running() { grep -q '^State:[[:space:]]*[^Z[:space:]]' "/proc/$1/status" 2>/dev/null; }  # not a zombie
run() {  # name: runs the lines on standard input as .ci/run would
  { printf 'set -euo pipefail\nsource "$SOURCE/.ci/background.sh"\nlogs=.\n'; cat; } >"$1.sh"
  code=0
  timeout 60 bash "$1.sh" >"$1.txt" 2>&1 || code=$?
}

run passes <<'CODE'
two_lines() { echo one; echo two; }
in_background lines two_lines
in_background quick true
finish lines
finish quick
echo "$(wc -l <lines.log) lines"
CODE
[ $code = 0 ] && [ "$(cat passes.txt)" = "2 lines" ] || fail "two runs that pass: code $code, $(cat passes.txt)"

run fails <<'CODE'
steps() {
  (setsid sleep 1000 & echo $! >left.pid)
  ( (while true; do sleep 0.1 || true; done) & echo $! >shell.pid)  # still the shell: no program was started
  echo "the reason"
  false | cat
  echo "not reached"
}
in_background steps steps
finish steps
echo "went on"
CODE
[ $code = 1 ] && grep -q "the reason" fails.txt && grep -q "steps failed with code 1" fails.txt || fail "no failure: $(cat fails.txt)"
! grep -E "went on|not reached" fails.txt || fail "went on after a failure"
for pid in $(cat left.pid shell.pid); do ! is_running "$pid" || fail "process $pid of a failed run is left"; done

# A daemon (a process that has left its parent), and one that ignores SIGTERM; the second ends after 10 s.
run is_left <<'CODE'
daemons() {
  (setsid sleep 1000 & echo $! >daemon.pid)
  trap '' TERM
  sleep 1000 & echo $! >deaf.pid
  wait
}
in_background daemons daemons
until [ -s daemon.pid ] && [ -s deaf.pid ]; do sleep 0.01; done
false
CODE
[ $code = 1 ] || fail "code $code, expected 1"
for pid in $(cat daemon.pid deaf.pid); do ! is_running "$pid" || fail "process $pid is left"; done

run is_terminated <<'CODE'
in_background sleeper sleep 1000
echo ${background[sleeper]} >sleeper.pid
kill -TERM $$
echo "went on"
CODE
[ $code = 143 ] || fail "code $code after SIGTERM, expected 143"
! is_running "$(cat sleeper.pid)" || fail "a process is left after SIGTERM"
