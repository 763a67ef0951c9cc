#!/usr/bin/env bash
# Installs what Lockstep needs on Debian 12 or Ubuntu 24.04, and only what is missing.
#   scripts/install_packages.sh        what the library and the samples need
#   scripts/install_packages.sh all    also what tests, benchmarks and CI need
#   scripts/install_packages.sh docs   only what scripts/docs.sh needs
set -euo pipefail

needed=(g++ cmake ninja-build pkg-config libeigen3-dev libfmt-dev nlohmann-json3-dev libcli11-dev zlib1g-dev libssl-dev libxxhash-dev)
optional=()  # whatever uses these is skipped without them, and says so
if [ "${1:-}" = all ]; then
  needed+=(doctest-dev clang clang-format-14 dpkg-dev file)
  optional+=(libgloo-dev libopenmpi-dev openmpi-bin libdnnl-dev libbenchmark-dev dataset-fashion-mnist clang-runtime
    iproute2 nmap doxygen)
elif [ "${1:-}" = docs ]; then
  needed=(doxygen)
fi

if ! command -v dpkg-query >/dev/null; then
  echo "This is not Debian or Ubuntu; Lockstep needs what these packages hold: ${needed[*]} ${optional[*]}"
  exit 0
fi

# The newest version dpkg has installed, empty otherwise; virtual packages count through what provides them.
installed() { dpkg-query -W -f='${db:Status-Abbrev}\n' "$1" 2>/dev/null | grep -q '^ii'; }
available() { apt-cache show "$1" >/dev/null 2>&1; }
# The sanitizers' run-time library carries clang's version in its name, and clang names its own version.
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
  [ "$package" != clang-runtime ] || package=$(clang_runtime)
  if [[ " ${optional[*]} clang-runtime $(clang_runtime) " != *" $package "* ]] || available "$package"; then
    wanted+=("$package")
  else
    echo "Skipping $package: this system does not offer it."
  fi
done
[ ${#wanted[@]} -gt 0 ] || exit 0
echo "Installing: ${wanted[*]}"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null
