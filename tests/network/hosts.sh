# Hosts for the tests of networks, to be sourced first. The script starts itself again in namespaces of its own (user,
# network, processes, mounts), where it may do all that root may; they end with its first process, however that ends, and
# take hosts, cables and programs with them. Exit code 77: skipped.
set -euo pipefail
skip() { echo "skipped: $*"; exit 77; }

if [ -z "${LOCKSTEP_OWN_NAMESPACES:-}" ]; then
  for tool in unshare nsenter ip ss; do
    command -v "$tool" >/dev/null || skip "needs $tool (util-linux, iproute2)"
  done
  own=(unshare --net --pid --mount --fork --kill-child --mount-proc)
  unshare --user --map-root-user --net true 2>/dev/null && own+=(--user --map-root-user)
  "${own[@]}" true 2>/dev/null || skip "needs user namespaces, or root"
  LOCKSTEP_OWN_NAMESPACES=1 exec "${own[@]}" bash "$0" "$@"
fi

port=29500
token=0123456789abcdef0123456789abcdef
declare -a jobs=()

# hosts 3: hosts 0 to 2, each with a cable to the router that this script runs in. Host 1 is 10.77.1.2.
hosts() {
  mount -t tmpfs none /run
  ip link set lo up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  local i
  for ((i = 0; i < $1; ++i)); do
    ip netns add "host$i"
    ip link add "cable$i" type veth peer name eth0 netns "host$i"
    ip addr add "10.77.$i.1/24" dev "cable$i"
    ip link set "cable$i" up
    on "$i" ip link set lo up
    on "$i" ip addr add "10.77.$i.2/24" dev eth0
    on "$i" ip link set eth0 up
    on "$i" ip route add default via "10.77.$i.1"
  done
}

on() {
  local host=$1
  shift
  nsenter --net="/run/netns/host$host" "$@"
}

# start host rank size arguments...: a rank, which writes rank_0.log. `one_host` and `descriptors` (their number) may be set.
start() {
  local host=$1 rank=$2 size=$3 per_host=1
  shift 3
  if [ "${one_host:-no}" = yes ]; then per_host=$size; fi
  : >"rank_$rank.log"
  (
    [ -z "${descriptors:-}" ] || ulimit -n "$descriptors"
    export RANK=$rank WORLD_SIZE=$size LOCAL_WORLD_SIZE=$per_host MASTER_ADDR=10.77.0.2 MASTER_PORT=$port
    export LOCKSTEP_JOB_TOKEN=$token
    exec nsenter --net="/run/netns/host$host" "$JOB" "$@" >>"rank_$rank.log" 2>&1
  ) &
  jobs[rank]=$!
}

fail() {
  echo "FAILED: $*"
  tail -n 3 rank_*.log
  exit 1
}

# until_true seconds what command...: a deadline for what nobody announces.
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || fail "never came: $what"
    sleep 0.02
  done
}
has_said() { grep -q -- "$2" "rank_$1.log"; }
steps_of() { grep -c '^step' "rank_$1.log" || true; }
has_steps() { [ "$(steps_of "$1")" -ge "$2" ]; }

# ends rank code: waits for the rank's end.
ends() {
  local code=0
  wait "${jobs[$1]}" || code=$?
  [ "$code" = "$2" ] || fail "rank $1 ended with $code, expected $2"
}

# done_well rank...: they end well, with the bits of an undisturbed run.
done_well() {
  local rank
  for rank in "$@"; do
    ends "$rank" 0
    has_said "$rank" '^done .*, same bits' || fail "rank $rank has other bits"
    echo "rank $rank: $(tail -n 1 "rank_$rank.log")"
  done
}

# fails rank milliseconds pattern: with an error that says `pattern`, within a time, and with the bits of the steps before.
# The bound gets what a loaded machine may need: a rank that hangs takes much longer.
slack=${LOCKSTEP_NETWORK_SLACK:-2000}
fails() {
  local last after
  ends "$1" 3
  last=$(grep -A 3 '^failed' "rank_$1.log")
  echo "rank $1: $last"
  has_said "$1" '^failed .*, same bits' || fail "rank $1 has other bits"
  grep -Eqz -- "$3" <<<"$last" || fail "rank $1 does not say '$3'"
  after=$(sed -n 's/^failed.* after \([0-9]*\) ms.*/\1/p' <<<"$last")
  [ "$after" -le $(($2 + slack)) ] || fail "rank $1 needed $after ms, expected $2"
}

nothing_left() {
  local left
  left=$(ps -A -o pid=,comm= | grep network_ || true)
  [ -z "$left" ] || fail "still running: $left"
}
