#!/usr/bin/env bash
# Every relative link in the Markdown files must name a file, and its #part a heading of that file. A test that an
# installed page names must be installed with it.
set -euo pipefail
cd "$SOURCE"
failed=0 checked=0
complain() { echo "$*"; failed=1; }

# Prints the anchors of a page, one per line: its headings in small letters, without punctuation, with - for spaces.
anchors() {
  awk '/^```/ { fenced = !fenced } !fenced && /^#+ / { sub(/^#+ /, ""); print tolower($0) }' "$1" |
    sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g; s/[^a-z0-9 _-]//g; s/ /-/g'
}

installation=cmake/install.cmake
installed_test() { [[ $1 == tests/contract/* ]] || grep -qF "install(FILES $1 " $installation; }

while IFS= read -r page; do
  # Outside fenced blocks and code spans: ](target)
  while IFS= read -r link; do
    case $link in *://* | mailto:*) continue ;; esac
    checked=$((checked + 1))
    file=${link%%#*} part=
    [[ $link == *#* ]] && part=${link#*#}
    target=$page
    [ -n "$file" ] && target=$(dirname "$page")/$file
    if [ ! -e "$target" ]; then
      complain "$page: $link: there is no $target"
    elif [ -f "$installation" ] && [[ $page == docs/* && $target == *../tests/* ]] && ! installed_test "${target##*../}"; then
      complain "$page: $link: $installation does not install it"
    elif [ -n "$part" ] && ! anchors "$target" | grep -xF -- "$part" >/dev/null; then
      complain "$page: $link: $target has no heading #$part"
    fi
  done < <(awk '/^```/ { fenced = !fenced } !fenced' "$page" | sed 's/`[^`]*`//g' | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//' || true)
done < <(find README.md CONTRIBUTING.md CHANGELOG.md docs samples tests exercises packaging -name '*.md' 2>/dev/null)

[ "$checked" -gt 20 ] || complain "only $checked links found: does the pattern still fit?"
[ "$failed" = 0 ] && echo "$checked links are valid"
exit "$failed"
