#!/usr/bin/env bash
# Trains two models on real data with four strategies, from a bare clone: logistic regression, and a perceptron with several
# buckets. Arguments go to both programs (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh demo
build=${LOCKSTEP_DEMO_BUILD:-build/demo}  # a configured folder, instead of a new one
if [ ! -f "$build/build.ninja" ]; then
  cmake --preset release -B "$build" -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_QUICK_BUILD=ON
fi
cmake --build "$build" --target logistic_regression fashion_mnist_mlp lockstep-explain
compare() {  # program, its other arguments
  "$build/samples/$1" --strategy compare --out build/demo/runs/"$1" "${@:2}"
}
compare logistic_regression "$@"
if [ -d /usr/share/datasets/fashion-mnist ]; then
  echo
  compare fashion_mnist_mlp --epochs 1 --report build/demo/report.html "$@"
else
  echo "fashion_mnist_mlp: skipped, because this system does not offer the package dataset-fashion-mnist."
fi
