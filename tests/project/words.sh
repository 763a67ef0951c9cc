#!/usr/bin/env bash
# Words that native readers stumble over, or for which the field has a term, must not occur in headers, sources and documents.
# CHANGELOG.md and docs/deviations.md may quote them. The guide, the exercises and README.md are not checked.
set -euo pipefail
cd "$SOURCE"
words='verbs?|gradient homes?|roll calls?|strangers?|beside|mend(s|ed|ing)?|anew|whoever|is there twice|the books|doz(e|es|ing)|leash(es)?|twins?'
failed=0
find lockstep.h tensor autograd nn optim data parallel samples tools bench docs *.md \
  \( -path docs/internals -o -path docs/deviations.md -o -path CHANGELOG.md -o -path README.md -o -path bench/results \) -prune -o \
  -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.def' -o -name '*.md' \) -print0 |
  xargs -0 grep -nHiwE "$words" && failed=1
printf 'Who is "%s"?\n' whoever | grep -qiwE "$words" || { echo "the pattern finds nothing"; failed=1; }
exit $failed
