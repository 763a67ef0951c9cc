#!/usr/bin/env bash
# A machine with g++ and cmake needs at most 16 more packages, 10 MB of downloads, to build and run Lockstep: the
# packages that scripts/install_packages.sh installs without arguments, and their dependencies. apt computes both plans
# for an empty machine, as any user and without a network; their difference counts. Skipped (77) without apt's lists.
set -euo pipefail
max_packages=16
max_bytes=10000000
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH/archives/partial" && cd "$SCRATCH"
if ! command -v apt-get >/dev/null || ! apt-cache show libeigen3-dev >/dev/null 2>&1; then
  echo "skipped: no apt, or no package lists (apt-get update)"
  exit 77
fi

: >nothing_installed
plan() {  # prints "file bytes" of every package to download for these, on an empty machine
  apt-get -o Dir::State::status="$SCRATCH/nothing_installed" \
    -o Dir::Cache::archives="$SCRATCH/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
    -o Debug::NoLocking=1 --no-install-recommends -qq --print-uris install "$@" | awk '{print $2, $3}' | sort
}
mapfile -t base < <(dpkg-query -W -f='${Essential} ${Package}\n' | awk '$1 == "yes" {print $2}')
base+=(g++ cmake)
read -ra core < <(sed -n 's/^needed=(\(.*\))$/\1/p' "$SOURCE/scripts/install_packages.sh")
[ ${#core[@]} -gt 0 ] || { echo "scripts/install_packages.sh has no line needed=(...)"; exit 1; }

plan "${base[@]}" >base.txt
plan "${base[@]}" "${core[@]}" >core.txt
comm -13 base.txt core.txt | tee added.txt
packages=$(wc -l <added.txt)
bytes=$(awk '{sum += $2} END {print sum + 0}' added.txt)
echo "$packages packages of $max_packages, $bytes bytes of $max_bytes"
[ "$packages" -ge 5 ] || { echo "too few packages: the plan must be wrong"; exit 1; }
[ "$packages" -le $max_packages ] && [ "$bytes" -le $max_bytes ]
