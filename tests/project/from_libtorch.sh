#!/usr/bin/env bash
# docs/from_libtorch.md: the Lockstep side of every row compiles; so does LibTorch's with interop/libtorch.h, except for the
# rows that the page counts, and so do the ports of LibTorch's examples. The page's figures about changed lines are right.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH"
page=$SOURCE/docs/from_libtorch.md
cd "$SOURCE/docs/from_libtorch"
failed=0
complain() { echo "$*"; failed=1; }

awk -v column=2 -v header=lockstep/lockstep.h -f "$SOURCE/tests/project/from_libtorch_rows.awk" "$page" >"$SCRATCH/rows.cpp"
rows=$(grep -c '^void row_' "$SCRATCH/rows.cpp")
[ "$rows" -ge 60 ] || complain "$rows rows"
"$CXX" -std=c++20 -w -I"$SOURCE/include" -fsyntax-only "$SCRATCH/rows.cpp" || complain "a row does not compile"
"$CXX" -std=c++20 -Wall -Wextra -Wpedantic -Werror -I"$SOURCE/include" -fsyntax-only lockstep.cpp || complain "lockstep.cpp"

# LibTorch's column. Without the rows that do not compile, the others must.
awk -v column=1 -v header=torch/torch.h -f "$SOURCE/tests/project/from_libtorch_rows.awk" "$page" |
  sed -e '/^#include <\(ATen\|torch.script\|c10\)/d' -e 's|^#include <torch/torch.h>|#include <lockstep/interop/libtorch.h>\
namespace torch = lockstep::libtorch; namespace at = torch; namespace c10 = torch;|' >"$SCRATCH/theirs.cpp"
case $("$CXX" --version) in *clang*) all_errors=-ferror-limit=0 ;; *) all_errors=-fmax-errors=0 ;; esac
"$CXX" -std=c++20 -w $all_errors -I"$SOURCE/include" -fsyntax-only "$SCRATCH/theirs.cpp" 2>"$SCRATCH/errors" || true
others=$({ grep -oE 'from_libtorch.md:[0-9]+:[0-9]+: error' "$SCRATCH/errors" || true; } | cut -d: -f2 | sort -u)
awk -v others="$others" 'BEGIN { split(others, list, "\n"); for (i in list) without["#line " list[i]] = 1 }
  { if (($1 " " $2) in without) skip = 2 } skip-- <= 0' "$SCRATCH/theirs.cpp" >"$SCRATCH/compiles.cpp"
"$CXX" -std=c++20 -w -I"$SOURCE/include" -fsyntax-only "$SCRATCH/compiles.cpp" || complain "an error without a row"
differ=$(wc -w <<<"$others") with_code=$(grep -c '^void row_[0-9]*() { [^}]' "$SCRATCH/theirs.cpp")
echo "$differ of $with_code rows with code of LibTorch do not compile with interop/libtorch.h"
tr '\n' ' ' <"$page" | grep -q "Of the $with_code rows below .*, all but $differ compile" ||
  complain "the page does not say: of the $with_code rows, all but $differ compile"

theirs=$(wc -l <libtorch.cpp) ours=$(wc -l <lockstep.cpp)
diff libtorch.cpp lockstep.cpp >"$SCRATCH/changes" || true
gone=$(grep -c '^<' "$SCRATCH/changes") new=$(grep -c '^>' "$SCRATCH/changes")
echo "$rows rows; programs of $theirs and $ours lines: $gone changed or removed, $new changed or new"
[ "$ours" -lt "$theirs" ] || complain "lockstep.cpp is not shorter"
[ $((4 * gone)) -le "$theirs" ] && [ $((4 * new)) -le "$ours" ] || complain "more than a quarter of the lines differ"
for said in "# $theirs and $ours" "# $gone: lines of the first" "# $new: lines of the second"; do
  grep -qF "$said" "$page" || complain "the page does not say \"$said\""
done

# LibTorch's examples (ports/LICENSE) and their ports: the original's lines that a port changes or removes, of those that are
# neither blank nor a comment. The limits stop the figures from rising.
mkdir -p "$SCRATCH/argparse"
cat >"$SCRATCH/argparse/argparse.hpp" <<'CODE'
#include <cstdint>
#include <iostream>
namespace argparse {  // declares the functions that dcgan calls
struct ArgumentParser {
  ArgumentParser(const char* name);
  ArgumentParser& add_argument(const char* name);
  ArgumentParser& help(const char* text);
  template <class T>
  ArgumentParser& default_value(T value);
  template <char, class T>
  ArgumentParser& scan();
  void parse_args(int count, const char** arguments);
  template <class T>
  T get(const char* name);
  friend std::ostream& operator<<(std::ostream& stream, const ArgumentParser& parser);
};
}  // namespace argparse
CODE
cd "$SOURCE/tests/project/ports"
code() { grep -vE '^[[:space:]]*(//|$)' "$1"; }
for limit in mnist:1 dcgan:2; do
  port=${limit%:*}
  "$CXX" -std=c++20 -Wall -Wextra -Werror -Wno-overloaded-virtual -Wno-reorder -I"$SOURCE/include" -I"$SCRATCH" \
    -fsyntax-only -x c++ "$port.lockstep" ||
    complain "$port.lockstep does not compile"
  lines=$(code "$port.libtorch" | wc -l) changed=$({ diff <(code "$port.libtorch") <(code "$port.lockstep") || true; } | grep -c '^<')
  echo "$port: $changed of $lines lines changed"
  [ "$changed" -le "${limit#*:}" ] || complain "$port: more than ${limit#*:} lines are changed"
  grep -qE "/$port.lockstep.: $changed of $lines lines (is|are) changed" "$page" ||
    complain "the page does not give $changed of $lines lines for $port"
done
exit $failed
