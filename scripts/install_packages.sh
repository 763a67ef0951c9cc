#!/usr/bin/env bash
# Installs missing packages that Lockstep needs on Debian 12, Debian 13 or Ubuntu 24.04.
#   scripts/install_packages.sh        packages for the library and the samples
#   scripts/install_packages.sh demo   also the data set of scripts/demo.sh
#   scripts/install_packages.sh all    also packages for tests, benchmarks and CI
#   scripts/install_packages.sh package also packages for scripts/package.sh
#   scripts/install_packages.sh docs   only packages for scripts/docs.sh
#   scripts/install_packages.sh format only packages for scripts/format.sh (not available on Debian 13)
set -euo pipefail

needed=(g++ cmake ninja-build pkg-config libeigen3-dev libfmt-dev nlohmann-json3-dev libcli11-dev zlib1g-dev libssl-dev libxxhash-dev)
optional=()  # a part that needs a missing one is skipped with a message
if [ "${1:-}" = all ]; then
  needed+=(doctest-dev clang dpkg-dev file patch)
  optional+=(libgloo-dev libopenmpi-dev openmpi-bin libdnnl-dev libpng-dev libjpeg-dev libbenchmark-dev dataset-fashion-mnist clang-runtime
    lld chromium libdlpack-dev iproute2 nmap doxygen universal-ctags slurm-wlm munge)
elif [ "${1:-}" = demo ]; then
  optional=(dataset-fashion-mnist)
elif [ "${1:-}" = package ]; then
  needed+=(dpkg-dev file)
  optional=(libgloo-dev libopenmpi-dev openmpi-bin libdnnl-dev libpng-dev libjpeg-dev)
elif [ "${1:-}" = docs ]; then
  needed=(doxygen)
elif [ "${1:-}" = format ]; then
  needed=(clang-format-14)
fi

if ! command -v dpkg-query >/dev/null; then
  echo "This is not Debian or Ubuntu; Lockstep needs the contents of these packages: ${needed[*]} ${optional[*]}"
  exit 0
fi

installed() { dpkg-query -W -f='${db:Status-Abbrev}\n' "$1" 2>/dev/null | grep -q '^ii'; }
available() { [ -n "$(apt-cache show "$1" 2>/dev/null)" ]; }
# The name of the sanitizers' run-time library contains clang's version, which clang prints.
clang_runtime() {
  apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]\+\)$/libclang-rt-\1-dev/p' | head -1
}

missing=()
for package in "${needed[@]}" "${optional[@]}"; do
  if [ "$package" = clang-runtime ]; then
    compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-*.a' >/dev/null || missing+=("$package")
  else
    installed "$package" || missing+=("$package")
  fi
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq

wanted=()
for package in "${missing[@]}"; do
  is_optional=$([[ " ${optional[*]} " != *" $package "* ]] || echo yes)
  [ "$package" != clang-runtime ] || package=$(clang_runtime)
  if [ -z "$is_optional" ] || available "$package"; then
    wanted+=("$package")
  else
    echo "Skipping $package: this system does not offer it."
  fi
done
[ ${#wanted[@]} -gt 0 ] || exit 0
echo "Installing: ${wanted[*]}"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null
