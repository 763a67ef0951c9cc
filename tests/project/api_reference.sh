#!/usr/bin/env bash
# The API reference must have pages for what users look up, and every public name must have a comment.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
failed=0
complain() { echo "$*"; failed=1; }

"$SOURCE/scripts/docs.sh" "$SCRATCH"
page_of() { sed 's/<[^>]*>//g' "html/$1.html" 2>/dev/null; }
documented() { grep -qF -- "$2" <<<"$(page_of "$1")" || complain "the page $1 does not say: $2"; }
documented index "Everything is in namespace"
documented namespacelockstep "x (..., in), weight (out, in), bias (out) or undefined"   # a comment above
documented namespacelockstep "a + alpha b"                                              # a comment on the same line
documented namespacelockstep "gradient 0 at 0"
documented classlockstep_1_1nn_1_1Linear "both from U(-1/sqrt(in), 1/sqrt(in))"
documented structlockstep_1_1parallel_1_1SimOptions "Algorithm of all_reduce"
documented classlockstep_1_1parallel_1_1ProcessGroup "A timeout names the missing ranks"
documented tensor_8h "Copying a Tensor copies the handle"  # the head of the file
documented structlockstep_1_1TraceEvent "nanoseconds of the system"
for module in base tensor autograd nn optim data parallel interop; do
  grep -q ">$module<" html/files.html || complain "module $module is not in the list of files"
done

# Everything public has a comment; the test also removes the comments of a function, a class and an option in a copy.
command -v ctags >/dev/null || { echo "without ctags comments are not looked for"; exit $failed; }
missing=$(bash "$SOURCE/tests/project/undocumented.sh" "$SOURCE")
[ -z "$missing" ] || complain "$missing"
mkdir copy
(cd "$SOURCE" && find lockstep.h base tensor autograd nn optim data parallel interop docs/Doxyfile \( -name '*.h' -o -name Doxyfile \) | tar cf - -T -) | tar xf - -C copy
sed -i 's|^/// True if shapes|bool undocumented_function();\n\n&|' copy/autograd/ops/functions.h
sed -i 's|^/// Returns its input.|class UndocumentedClass {\n public:\n  int undocumented_member = 0;\n};\n\n&|
  s|^  bool bias = true;|  bool undocumented_option = true;\n&|' copy/nn/layers/layers.h
bash "$SOURCE/tests/project/undocumented.sh" copy >broken.txt
for name in undocumented_function UndocumentedClass undocumented_member undocumented_option; do
  grep -qE ":$name is not documented" broken.txt || complain "$name is not found to have no comment"
done
exit $failed
