#!/usr/bin/env bash
# cpack writes one .deb of at most 5.5 MB with the library, lockstep-run, headers, CMake package, lockstep.pc, the licence and
# documents whose links are valid.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
"$(dirname "$CMAKE")/cpack" -G DEB --config "$BUILD/CPackConfig.cmake" -B "$SCRATCH" >cpack.log 2>&1 || { cat cpack.log; exit 1; }
deb=$(find . -name "lockstep_${VERSION}_*.deb")
[ -f "$deb" ] || { cat cpack.log; exit 1; }
dpkg-deb -c "$deb" | awk '{print $6}' >content
for part in '/liblockstep\.(so|a)$' '/include/lockstep/lockstep\.h$' '/include/lockstep/version\.h$' \
            '/include/lockstep/tensor/tensor\.h$' '/liblockstep_launch\.a$' '/include/lockstep/parallel/launch/launch\.h$' '/bin/lockstep-run$' '/lockstepConfig\.cmake$' '/lockstep\.pc$' '/lockstep-launch\.pc$' \
            '/doc/lockstep/copyright$' '/doc/lockstep/README\.md$' '/lockstep/docs/internals/README\.md$' \
            '/lockstep/samples/logistic_regression\.cpp$'; do
  grep -qE "$part" content || { echo "$deb lacks $part"; exit 1; }
done
! grep -E '/include/.*(_internal\.h$|/(cpu|cuda)/)' content || { echo "private headers are installed"; exit 1; }
! grep -E '/solutions/|/build/' content || { echo "solutions or build output are installed"; exit 1; }
dpkg-deb -x "$deb" tree
SOURCE=tree/usr/share/lockstep bash "$SOURCE/tests/project/doc_links.sh"
size=$(stat -c %s "$deb")
echo "$deb: $size bytes; $(dpkg-deb -f "$deb" Depends)"
[ "$size" -le 5500000 ]
