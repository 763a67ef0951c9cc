#!/usr/bin/env bash
# Prints what public headers declare without a comment for Doxygen: neither beside it (///<), nor above it (///), nor above
# the lines that it stands among, up to an empty line. Constructors, destructors, assignments, further functions of one name and XOptions need none, nor
# does what overrides.
#   undocumented.sh FOLDER    the sources
set -euo pipefail
cd "$1"
public="lockstep.h parallel/simulate/simulate.h interop/dlpack.h interop/eigen.h interop/libtorch.h"
for ((before = 0; before != ${#public};)); do
  before=${#public}
  found=$(grep -hoE '^#include "lockstep/[^"]+' $public | sed 's|.*"lockstep/||' | grep -v '^version.h$')
  public=$(printf '%s\n' $public $found | sort -u | tr '\n' ' ')
done
# What headers hold for the library itself, as docs/Doxyfile says.
own_files=$(sed -n 's/^EXCLUDE = //p' docs/Doxyfile | tr ' ' '|')
own_scopes=$(sed -n '/^EXCLUDE_SYMBOLS/,/[^\\]$/p' docs/Doxyfile | grep -oE 'lockstep::[A-Za-z:]+' | paste -sd '|')

ctags --languages=C++ --langmap=C++:+.h --c++-kinds=csugtfpmv --fields=nKsa -f - $public |
  awk -F '\t' -v own_files="^($own_files)$" -v own_scopes="^($own_scopes)(::|$)" '
    function is_commented(file, line,    text, last) {
      if (!(file in count)) while ((getline text <file) > 0) lines[file, ++count[file]] = text
      for (last = line; last <= count[file]; ++last) {
        if (lines[file, last] ~ /\/\/\/| override|^ *friend /) return 1
        if (lines[file, last] ~ /[;{}]/) break
      }
      while (--line > 0) {
        text = lines[file, line]
        if (text ~ /^ *\/\/(\/| ---)/) return 1
        if (text ~ /^ *$|:$|^#|^ *(class|struct|enum|union|namespace) .*\{/) return 0
      }
      return 0
    }
    {
      name = $1; file = $2; kind = $4; line = 0; scope = ""; access = "public"
      for (i = 5; i <= NF; ++i) {
        if ($i ~ /^line:/) line = substr($i, 6) + 0
        else if ($i ~ /^access:/) access = substr($i, 8)
        else if ($i ~ /^(class|struct|namespace|union|enum):/) { scope = $i; sub(/^[a-z]+:/, "", scope) }
      }
      own = scope; sub(/.*::/, "", own)
      whole = scope == "" ? name : scope "::" name
      if (access != "public") hidden[whole] = 1
      if (scope == "" || access != "public" || file ~ own_files || whole ~ own_scopes || whole ~ /(^|::)(detail|__anon)/) next
      if (name == own || name ~ /^~|^operator =$|Options$/ || file !~ /\.h$/) next
      if (is_commented(file, line)) documented[whole] = 1
      else found[whole] = file ":" line
    }
    function is_hidden(whole) {
      while (sub(/::[^:]*$/, "", whole)) if (whole in hidden) return 1
      return 0
    }
    END {
      for (whole in found) if (!(whole in documented) && !is_hidden(whole)) print found[whole] ": " whole " is not documented"
    }' |
  sort
