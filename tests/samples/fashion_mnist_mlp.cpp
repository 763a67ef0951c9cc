// The sample on Debian's dataset-fashion-mnist; without that package only its error message.
#include "tests/samples/support.h"

#include <cstdlib>

TEST_CASE("without the data the error names the package that provides them") {
  const Finished result = run("fashion_mnist_mlp", {"--out", "no_data", "--data", "nowhere"});
  CHECK(result.code == 1);
  CHECK(contains(result.output, "nowhere/train-images-idx3-ubyte.gz"));
  CHECK(contains(result.output, "dataset-fashion-mnist"));
}

TEST_CASE("one epoch with large batches classifies three images of four correctly") {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) {
    MESSAGE("SKIPPED: dataset-fashion-mnist is not installed");
    return;
  }
  const Finished result =
      run("fashion_mnist_mlp", {"--out", "one_epoch", "--epochs", "1", "--batch", "512", "--resume", "no"});
  REQUIRE(result.code == 0);
  const std::string last = lines(result.output).back();
  CHECK(last.starts_with("test accuracy 0."));
  CHECK(std::strtod(last.c_str() + 14, nullptr) >= 0.75);
}
