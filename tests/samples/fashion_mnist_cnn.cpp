// The sample on a tenth of Debian's dataset-fashion-mnist; without that package only its error message.
#include "tests/samples/support.h"

#include <zlib.h>

#include <cstdlib>

namespace {

const std::string kData = "/usr/share/datasets/fashion-mnist/";

// Copies the first `count` entries, of `size` bytes each, of an IDX file with `dims` dimensions.
void copy_first(const std::string& from, const std::string& to, int dims, int count, int size) {
  std::string bytes(static_cast<std::size_t>(4 + 4 * dims + count * size), '\0');
  const auto length = static_cast<unsigned>(bytes.size());
  const gzFile in = gzopen(from.c_str(), "rb");
  REQUIRE(in != nullptr);
  REQUIRE(gzread(in, bytes.data(), length) == static_cast<int>(length));
  gzclose(in);
  for (int i = 0; i < 4; ++i) bytes[static_cast<std::size_t>(4 + i)] = static_cast<char>(count >> (24 - 8 * i));
  const gzFile out = gzopen(to.c_str(), "wb1");
  REQUIRE(out != nullptr);
  REQUIRE(gzwrite(out, bytes.data(), length) == static_cast<int>(length));
  REQUIRE(gzclose(out) == Z_OK);
}

}  // namespace

TEST_CASE("without the data, the convolutional network's error names the package that provides them") {
  const Finished result = run("fashion_mnist_cnn", {"--out", "no_data", "--data", "nowhere"});
  CHECK(result.code == 1);
  CHECK(contains(result.output, "dataset-fashion-mnist"));
}

TEST_CASE("after one epoch on 6,000 images the convolutional network is right for three of four test images") {
  if (!std::filesystem::exists(kData + "train-images-idx3-ubyte.gz")) {
    MESSAGE("SKIPPED: dataset-fashion-mnist is not installed");
    return;
  }
  const std::string folder = fresh("some_pictures");
  std::filesystem::create_directories(folder);
  for (const auto& [part, count] : {std::pair<std::string, int>{"train", 6000}, {"t10k", 1000}}) {
    copy_first(kData + part + "-images-idx3-ubyte.gz", folder + "/" + part + "-images-idx3-ubyte.gz", 3, count, 784);
    copy_first(kData + part + "-labels-idx1-ubyte.gz", folder + "/" + part + "-labels-idx1-ubyte.gz", 1, count, 1);
  }
  const Finished result = run("fashion_mnist_cnn", {"--out", "one_epoch", "--data", folder, "--epochs", "1", "--batch",
                                                    "64", "--lr", "0.003", "--resume", "no"});
  REQUIRE(result.code == 0);
  const std::string last = lines(result.output).back();
  CHECK(last.starts_with("test accuracy 0."));
  CHECK(std::strtod(last.c_str() + 14, nullptr) >= 0.75);
}
