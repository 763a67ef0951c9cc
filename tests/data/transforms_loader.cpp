// Transforms of images, and the draws of random ones in a DataLoader.
#include <map>
#include <set>

#include "support.h"

using namespace ls::data;
namespace tf = ls::data::transforms;

namespace {

// (2, height, width): element (c, y, x) is 100 c + 10 y + x.
ls::Tensor picture(std::int64_t height, std::int64_t width) {
  std::vector<float> values;
  for (int c = 0; c < 2; ++c) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) values.push_back(static_cast<float>(100 * c + 10 * y + x));
    }
  }
  return ls::tensor(values).reshape({2, height, width});
}

// Pictures of index, cropped and flipped at random.
struct Pictures : Dataset {
  tf::Compose transform{tf::RandomCrop(4, {.padding = 2}), tf::RandomHorizontalFlip(), tf::RandomCrop({3, 2})};
  std::int64_t size() const override { return 24; }
  Example get(std::int64_t index) const override {
    return {transform(picture(6, 5) + 1 + static_cast<double>(index)), ls::tensor(index)};
  }
};

// The pictures of an epoch by index.
template <class Loader>
std::map<std::int64_t, std::vector<float>> pictures_of(Loader& loader) {
  std::map<std::int64_t, std::vector<float>> found;
  for (const auto& [x, index] : loader) {
    for (std::int64_t i = 0; i < x.size(0); ++i)
      CHECK(found.emplace(index[i].template item<std::int64_t>(), x[i].template to_vector<float>()).second);
  }
  return found;
}

}  // namespace

TEST_CASE("Resize gives the values of PyTorch's interpolation with and without antialiasing") {
  const ls::StateDict dict = golden("transforms");
  int cases = 0;
  for (const auto& [name, x] : dict) {
    if (!name.ends_with("/x")) continue;
    const ls::Tensor want = dict.at(name.substr(0, name.size() - 1) + "y");
    const Tolerance allowed = x.dtype() == ls::kFloat32 ? Tolerance{1e-6, 1e-6} : Tolerance{1e-12, 1e-12};
    const ls::Size2d size = {want.size(1), want.size(2)};
    check_close(tf::Resize(size)(x), want, name, allowed);
    const ls::Tensor plain = dict.at(name.substr(0, name.size() - 1) + "plain");
    check_close(tf::Resize(size, {.antialias = false})(x), plain, name + ", plain", allowed);
    ++cases;
  }
  CHECK(cases == 10);
  CHECK(tf::Resize(4)(picture(9, 6)).shape() == ls::Shape{2, 6, 4});
  CHECK(tf::Resize(4)(picture(6, 9)).shape() == ls::Shape{2, 4, 6});
  CHECK(tf::Resize(5)(picture(5, 5)).shape() == ls::Shape{2, 5, 5});
}

TEST_CASE("ToTensor, Normalize, CenterCrop and Compose follow torchvision's formulas") {
  const ls::Tensor bytes = ls::arange(0, 24).to(ls::kUInt8).reshape({2, 4, 3});
  const ls::Tensor planes = tf::ToTensor()(bytes);
  CHECK(same_bits(planes, bytes.permute({2, 0, 1}).to(ls::kFloat32) / 255.0));
  CHECK(tf::ToTensor()(bytes.select(2, 0)).shape() == ls::Shape{1, 2, 4});
  CHECK(same_bits(tf::ToTensor()(ls::ones({2, 4, 3})), ls::ones({3, 2, 4})));
  CHECK(same_bits(tf::ConvertImageDtype()(bytes), bytes.to(ls::kFloat32) / 255.0));
  CHECK(same_bits(tf::ConvertImageDtype(ls::kFloat64)(bytes), bytes.to(ls::kFloat64) / 255.0));
  CHECK(same_bits(tf::ConvertImageDtype(ls::kFloat64)(planes), planes.to(ls::kFloat64)));
  const ls::Tensor normal = tf::Normalize({0.5, 0.25, 0}, {0.5, 2, 1})(planes);
  CHECK(same_bits(normal[1], (planes[1] - 0.25) / 2.0));
  CHECK(same_bits(tf::Compose(tf::ToTensor(), tf::Normalize({0.5}, {0.5}))(bytes), (planes - 0.5) / 0.5));
  CHECK(same_bits(tf::Compose()(bytes), bytes));

  const ls::Tensor x = picture(5, 8);
  CHECK(same_bits(tf::CenterCrop({3, 4})(x), x.narrow(1, 1, 3).narrow(2, 2, 4)));
  CHECK(same_bits(tf::CenterCrop({2, 5})(x), x.narrow(1, 2, 2).narrow(2, 2, 5)));  // 1.5 and 1.5 round to 2
  CHECK(same_bits(tf::CenterCrop({4, 7})(x), x.narrow(1, 0, 4).narrow(2, 0, 7)));  // 0.5 rounds to 0
  const ls::Tensor padded = tf::CenterCrop({8, 2})(x);                             // one row above, two below
  CHECK(same_bits(padded.narrow(1, 1, 5), x.narrow(2, 3, 2)));
  CHECK(ls::sum(padded.narrow(1, 6, 2)).item<float>() == 0);
  CHECK(ls::sum(padded.narrow(1, 0, 1)).item<float>() == 0);
}

TEST_CASE("RandomCrop takes every place, RandomHorizontalFlip its share") {
  ls::manual_seed(1);
  const ls::Tensor x = picture(4, 5);
  std::set<std::pair<int, int>> places;
  for (int i = 0; i < 300; ++i) {
    const ls::Tensor part = tf::RandomCrop({3, 2})(x);
    const int first = static_cast<int>(part[0][0][0].item<float>());
    CHECK(same_bits(part, x.narrow(1, first / 10, 3).narrow(2, first % 10, 2)));
    places.emplace(first / 10, first % 10);
  }
  CHECK(places.size() == 8);
  std::set<float> corners;  // of a crop of the padded picture: its first row is above, or the picture's
  for (int i = 0; i < 100; ++i)
    corners.insert(tf::RandomCrop({4, 5}, {.padding = {1, 0}})(x + 1)[0][0][0].item<float>());
  CHECK(corners == std::set<float>{0, 1, 11});
  int flipped = 0;
  for (int i = 0; i < 400; ++i) {
    const ls::Tensor y = tf::RandomHorizontalFlip(0.25)(x);
    const bool is_flipped = !same_bits(y, x);
    if (is_flipped) CHECK(same_bits(y, ls::flip(x, {-1})));
    flipped += is_flipped;
  }
  CHECK(std::abs(flipped - 100) < 40);
  CHECK(same_bits(tf::RandomHorizontalFlip(0)(x), x));
  CHECK(same_bits(tf::RandomHorizontalFlip(1)(x), ls::flip(x, {-1})));
}

TEST_CASE("a sample has the same draws in an epoch, whatever workers, ranks, batches or order") {
  ls::manual_seed(3);
  const auto set = std::make_shared<Pictures>();
  DataLoader alone(set, {.batch_size = 5});
  const auto first = pictures_of(alone), second = pictures_of(alone);
  CHECK(first != second);
  CHECK(first.at(0) != first.at(1));
  for (const std::int64_t workers : {0, 1, 3}) {
    DataLoader loader(set, {.batch_size = 4, .shuffle = true, .num_workers = workers});
    CHECK(pictures_of(loader) == first);
    CHECK(pictures_of(loader) == second);
    loader.set_epoch(1);
    loader.skip(2);
    for (const auto& [index, picture] : pictures_of(loader)) CHECK(picture == second.at(index));
    for (const std::int64_t rank : {0, 1}) {
      DataLoader own(set, {.sampler = std::make_shared<DistributedSampler>(24, 2, rank), .num_workers = workers});
      for (const auto& [index, picture] : pictures_of(own)) CHECK(picture == first.at(index));
    }
  }
  ls::manual_seed(4);
  DataLoader other(set, {.batch_size = 5});
  CHECK(pictures_of(other) != first);
}

TEST_CASE("images and options that do not fit are errors") {
  const ls::Tensor x = picture(4, 5), bytes = ls::zeros({4, 5, 3}, {.dtype = ls::kUInt8});
  CHECK(contains(error_of([&] { tf::RandomCrop(6)(x); }), "smaller with its padding than (6, 6)"));
  CHECK(contains(error_of([&] { tf::CenterCrop(0); }), "CenterCrop: the size is (0, 0)"));
  CHECK(contains(error_of([&] { tf::CenterCrop(2)(ls::ones({3})); }), "expected (..., height, width)"));
  CHECK(contains(error_of([&] { tf::RandomHorizontalFlip(1.5); }), "p is 1.5"));
  CHECK(contains(error_of([&] { tf::Normalize({0, 0}, {1}); }), "2 means and 1 deviations"));
  CHECK(contains(error_of([&] { tf::Normalize({0}, {0}); }), "a standard deviation is 0"));
  CHECK(contains(error_of([&] { tf::Normalize({0, 0, 0}, {1, 1, 1})(x); }), "expected (3, height, width)"));
  CHECK(contains(error_of([&] { tf::Resize(3)(bytes); }), "call ToTensor first"));
  CHECK(contains(error_of([&] { tf::ToTensor()(ls::ones({3})); }), "expected (height, width, channels)"));
  CHECK(contains(error_of([&] { static_cast<void>(tf::ConvertImageDtype(ls::kInt64)); }), "the dtype is i64"));
  CHECK(contains(error_of([&] { tf::ConvertImageDtype()(ls::arange(0, 3)); }), "expected u8 or floating-point"));
  CHECK(contains(error_of([&] { tf::RandomCrop(3, {.padding = -1}); }), ".padding is (-1, -1)"));
}
