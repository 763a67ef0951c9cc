#!/usr/bin/env bash
# Trains logistic regression on real data, in every mode, from a bare clone. Arguments go to the sample (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh
if [ ! -f build/demo/build.ninja ]; then
  cmake --preset release -B build/demo -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_QUICK_BUILD=ON
fi
cmake --build build/demo --target logistic_regression
exec build/demo/samples/logistic_regression --mode compare --out build/demo/runs/logistic_regression \
  --report build/demo/report.html "$@"
