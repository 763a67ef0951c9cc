#!/usr/bin/env bash
# Formats the tree with clang-format 14: scripts/format.sh [--check] [file ...]. --check only reports what would change.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$tool" ] || ! "$tool" --version | grep -q ' 14\.'; then
  echo "clang-format 14 is needed (other versions format differently): scripts/install_packages.sh format"
  exit 1
fi
mode=(-i)
if [ "${1:-}" = --check ]; then
  mode=(--dry-run --Werror)
  shift
fi
[ $# -gt 0 ] || set -- '*.cpp' '*.h' '*.cu' '*.cuh'
# lockstep.h exists twice, once as a link, which clang-format would replace by a file.
git ls-files -z --cached --others --exclude-standard -- "$@" ':!include/lockstep/lockstep.h' |
  xargs -0r -n 40 -P "$(nproc)" "$tool" --style=file "${mode[@]}"
