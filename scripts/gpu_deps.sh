#!/usr/bin/env bash
# Fills a folder with the packages that a build needs besides CMake, a compiler and CUDA, for a machine without
# them and without a network: scripts/gpu_check.sh takes the folder as --prefix. They are downloaded from this system's
# apt sources (Debian 12 or Ubuntu 24.04) and unpacked; nothing is installed.
#   scripts/gpu_deps.sh [FOLDER]      default .deps, which git ignores; about 25 MB. Its earlier content is removed.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,6s/^# \?//p' "$0"; exit 0 ;; esac

folder=${1:-.deps}
headers=(libeigen3-dev libfmt-dev nlohmann-json3-dev libcli11-dev zlib1g-dev libssl-dev libxxhash-dev doctest-dev)
command -v apt-get >/dev/null && command -v dpkg >/dev/null || { echo "gpu_deps.sh: needs apt-get and dpkg" >&2; exit 1; }
if [ -e "$folder" ] && [ ! -e "$folder/.gpu_deps" ] && [ -n "$(ls -A "$folder")" ]; then
  echo "gpu_deps.sh: $folder holds something else; name a folder of its own" >&2
  exit 1
fi

# The libraries of the headers; their package names contain the version: libfmt9, libssl3, ...
libraries() {
  apt-cache depends --important "${headers[@]}" |
    sed -n 's/^ *Depends: \(\(libfmt\|libssl\|libxxhash\|zlib1g\)[0-9a-z.]*\)$/\1/p' | sort -u
}
mapfile -t packages < <(printf '%s\n' "${headers[@]}" && libraries)

work=$(mktemp -d)
unpacked=$work/unpacked
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get -o APT::Sandbox::User=root download "${packages[@]}" >/dev/null)
mkdir "$unpacked"
for package in "$work"/*.deb; do dpkg -x "$package" "$unpacked"; done
[ ! -d "$unpacked/lib" ] || [ -L "$unpacked/lib" ] || cp -a "$unpacked/lib/." "$unpacked/usr/lib/"
rm -rf "$unpacked/usr/share/doc" "$unpacked/usr/share/man" "$unpacked"/usr/lib/*/lib{ssl,crypto}.a

# Links to absolute paths would leave the folder: point them to the file of that name next to them instead.
while IFS= read -r link; do
  target=$(dirname "$link")/$(basename "$(readlink "$link")")
  [ -e "$target" ] && ln -sf "$(basename "$target")" "$link"
done < <(find "$unpacked/usr/lib" -type l -lname '/*')

rm -rf "$folder"
mv "$unpacked/usr" "$folder"
touch "$folder/.gpu_deps"
echo "$folder: $(du -sh "$folder" | cut -f1), ${packages[*]}"
