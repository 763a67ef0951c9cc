#!/usr/bin/env bash
# Runs a command as a new user would: in a fresh clone of the current commit, in a bare Debian installed in a folder.
#   scripts/bare_system.sh 'bash scripts/demo.sh'            Debian 13 (trixie)
#   scripts/bare_system.sh bookworm 'bash scripts/test.sh'   another release: bookworm is Debian 12
# Needs root, debootstrap, and a Debian mirror in this system's package sources. The folders, in $TMPDIR, are kept:
# lockstep-bare-RELEASE-base is reused; lockstep-bare-RELEASE is a new copy of it for each run, unless KEEP=1 is set.
set -euo pipefail
release=trixie
if [ $# = 2 ]; then
  release=$1
  shift
fi
if [ $# != 1 ]; then
  sed -n '2,6s/^# //p' "$0"
  exit 2
fi
repository=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
base=${TMPDIR:-/tmp}/lockstep-bare-$release-base
root=${TMPDIR:-/tmp}/lockstep-bare-$release
mirror=$({ cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || true; } |
  awk '/^URIs:/ {print $2; exit} /^deb / {for (i = 2; i <= NF; i++) if ($i ~ /^http/) {print $i; exit}}')
[ -n "$mirror" ] || { echo "bare_system.sh: /etc/apt names no Debian mirror"; exit 1; }
command -v debootstrap >/dev/null || { echo "bare_system.sh: debootstrap is missing (apt-get install debootstrap)"; exit 1; }

unmount() {
  local folder
  while folder=$(findmnt -rno TARGET | grep -m1 -E "^$root(/|$)"); do umount --recursive --lazy "$folder"; done
}
trap unmount EXIT

if [ ! -f "$base/etc/debian_version" ]; then
  rm -rf "$base"
  debootstrap --variant=minbase "$release" "$base" "$mirror" >"$base.log" 2>&1 || { tail "$base.log"; exit 1; }
fi
if [ "${KEEP:-0}" != 1 ] || [ ! -d "$root/root/project" ]; then
  unmount
  rm -rf --one-file-system "$root"
  cp -a "$base" "$root"
  git clone -q "$repository" "$root/root/project"
fi

# The mirror may need this system's name resolution, proxy and certificates.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
echo "deb $mirror $release main" >"$root/etc/apt/sources.list"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  mkdir -p "$root/etc/ssl/certs"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
fi
mount --bind "$root" "$root"  # network namespaces need / to be a mount point
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"

environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb)
while IFS= read -r variable; do environment+=("$variable"); done < <(env | grep -iE '^(https?|no)_proxy=' || true)
inside() { chroot "$root" env -i "${environment[@]}" bash -c "$1" </dev/null; }
inside 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends git ca-certificates >/dev/null'
inside "cd /root/project && time ($1)"
