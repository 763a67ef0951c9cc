#!/usr/bin/env bash
# The API reference has a page for what users look up, and what is public and not documented is an error.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
failed=0
complain() { echo "$*"; failed=1; }

"$SOURCE/scripts/docs.sh" "$SCRATCH"
page_of() { sed 's/<[^>]*>//g' "html/$1.html" 2>/dev/null; }
documented() { grep -qF -- "$2" <<<"$(page_of "$1")" || complain "the page $1 does not say: $2"; }
documented index "Everything is in namespace"
documented group__autograd "x (..., in), weight (out, in), bias (out) or undefined"   # a comment above
documented group__autograd "a + alpha b"                                              # a comment beside
documented group__autograd "gradient 0 at 0"
documented classlockstep_1_1nn_1_1Linear "both from U(-1/sqrt(in), 1/sqrt(in))"
documented structlockstep_1_1nn_1_1LinearOptions "Options of Linear"
documented classlockstep_1_1parallel_1_1ProcessGroup "A timeout names the ranks that are missing"
documented classlockstep_1_1Tensor "Copying a Tensor copies the handle"  # the head of its file
documented structlockstep_1_1TraceEvent "nanoseconds of the system"
for module in tensor autograd nn optim data parallel; do
  [ -f "html/group__$module.html" ] || complain "module $module has no page"
done

# Left undocumented in a copy: a function, a class, an option.
mkdir copy
(cd "$SOURCE" && find lockstep.h tensor autograd nn optim data parallel -name '*.h' | tar cf - -T - docs/Doxyfile docs/api scripts) | tar xf - -C copy
sed -i 's|^// True if shapes|bool undocumented_function();\n\n&|' copy/autograd/functions.h
sed -i 's|^// Returns its input.|class UndocumentedClass {\n public:\n  int undocumented_member = 0;\n};\n\n&|
  s|^  bool bias = true;|  bool undocumented_option = true;\n&|' copy/nn/layers.h
if copy/scripts/docs.sh "$SCRATCH/broken" >broken.txt 2>&1; then complain "what is not documented is no error"; fi
for name in undocumented_function UndocumentedClass undocumented_member undocumented_option; do
  grep -qE "(Member|Compound) (.*::)?$name.* is not documented" broken.txt || complain "no warning names $name"
done
exit $failed
