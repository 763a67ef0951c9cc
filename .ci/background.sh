# Background runs of .ci/run; to be sourced first, because it starts the caller anew. The caller sets $logs, the folder
# of their logs.

# Every process of a run is found by this variable. Linux shows the environment that a program was started with, so only
# a shell that was started with the variable has children that show it before they become another program.
if [ "${LOCKSTEP_BACKGROUND:-}" != $$ ]; then
  LOCKSTEP_BACKGROUND=$$ exec "$BASH" "$0" "$@"
fi
declare -A background=()

# in_background name command...: starts a command or function, whose output goes to $logs/name.log.
in_background() {
  "${@:2}" >"$logs/$1.log" 2>&1 </dev/null &
  background[$1]=$!
}

# finish name: waits for it. If it failed, prints its log and exits with its code.
finish() {
  local code=0
  wait "${background[$1]}" || code=$?
  unset "background[$1]"
  [ $code = 0 ] && return
  cat "$logs/$1.log"
  printf '\n%s failed with code %d; its output is above\n' "$1" $code
  exit $code
}

# Ends the background runs, with all processes that they started. They are found by their environment, because daemons
# leave their parents.
end_background() {
  local end=$((SECONDS + 10)) signal=TERM pid pids
  while true; do
    pids=$(grep -lazxF "LOCKSTEP_BACKGROUND=$$" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 || true)
    pids=$(for pid in $pids; do
      [ "$pid" = $$ ] || ! grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$pid/status" || echo "$pid"
    done)
    [ -n "$pids" ] || break
    kill -$signal $pids 2>/dev/null || true
    [ "$SECONDS" -lt "$end" ] || signal=KILL
    [ "$SECONDS" -lt $((end + 10)) ] || break
    sleep 0.1
  done
  wait
}
trap end_background EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
