#!/usr/bin/env bash
# Words that native readers stumble over, or for which the field has a term, must not occur in headers, sources and documents.
# CHANGELOG.md and docs/deviations.md may quote them.
set -euo pipefail
cd "$SOURCE"
words='verbs?|gradient homes?|roll calls?|strangers?|beside|mend(s|ed|ing)?|anew|whoever|is there twice|the books|doz(e|es|ing)|leash(es)?|twins?'
failed=0
find lockstep.h base tensor autograd nn optim data parallel interop samples tools bench docs exercises *.md \
  \( -path docs/deviations.md -o -path CHANGELOG.md -o -path bench/results -o -path exercises/build \) -prune -o \
  -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.def' -o -name '*.md' \) -print0 |
  xargs -0 grep -nHiwE "$words" && failed=1
# Further phrases of the guide and the exercises. Fenced blocks quote programs' output, and are left out.
phrases='rows? of (a|the|each) (batch|step)|culprits?|lanes? of|hand(s|ed)? on|bit for bit|the same bits|gives? back|goes? on'
find docs/internals docs/teaching.md docs/course.md docs/exam.md exercises -path exercises/build -prune -o -type f \( -name '*.md' -o -name '*.h' -o -name '*.cpp' \) -print0 |
  xargs -0 awk 'FNR == 1 { fenced = 0 } /^```/ { fenced = !fenced } !fenced { print FILENAME ":" FNR ":" $0 }' |
  grep -iwE "$phrases" && failed=1
# Parts of identifiers for which the field has a term: request, channel, check_liveness, no_linger, complete, counted, hello.
identifiers='parcel|mailbox|look_around|at_once|settle|booked|greet'
find base tensor autograd nn optim data parallel interop samples tools bench tests -path tests/golden -prune -o \
  -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.def' \) -print0 |
  xargs -0 grep -nHiE "$identifiers" && failed=1
printf 'class GlooParcel {\n' | grep -qiE "$identifiers" || { echo "the pattern of identifiers finds nothing"; failed=1; }
printf 'Who is "%s"?\n' whoever | grep -qiwE "$words" || { echo "the pattern finds nothing"; failed=1; }
printf 'equal, bit for bit.\n' | grep -qiwE "$phrases" || { echo "the pattern of phrases finds nothing"; failed=1; }
exit $failed
