// Data sets of image files in folders, read by a DataLoader.
#include <filesystem>
#include <map>
#include <set>

#include "lockstep/data/images.h"

#include "image_bytes.h"
#include "support.h"

using namespace ls::data;
namespace tf = ls::data::transforms;
namespace fs = std::filesystem;

namespace {

void write_image(const std::string& path, const std::string& file) {
  fs::create_directories(fs::path(path).parent_path());
  write_file(path, file);
}

// A new folder `root` of 3 classes with 6, 8 and 10 images, of 5 x 4 to 8 x 7 pixels; image i of class c has the color
// (c, i, 9).
std::string new_root() {
  fs::remove_all("root");
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 6 + 2 * c; ++i) {
      const auto side = static_cast<std::uint32_t>(4 + i % 4);
      write_image("root/" + std::string(1, char('a' + c)) + "/" + std::to_string(100 + i) + ".png",
                  png_of_color(side + 1, side, c, i, 9));
    }
  }
  return "root";
}

std::shared_ptr<ImageFolder> folder_of(ImageFolderOptions options) {
  return std::make_shared<ImageFolder>("root", std::move(options));
}

std::shared_ptr<const tf::Transform> one_size() {
  return std::make_shared<tf::Compose>(tf::ToTensor(), tf::RandomCrop(4), tf::RandomHorizontalFlip());
}

std::vector<std::string> paths_of(const ImageFolder& folder) {
  std::vector<std::string> paths;
  for (const ImageSample& sample : folder.samples()) paths.push_back(sample.path + ":" + std::to_string(sample.target));
  return paths;
}

std::string folder_error(const ImageFolderOptions& options = {}, const std::string& root = "root") {
  return error_of<ls::IoError>([&] { ImageFolder(root, options); });
}

// The batches of an epoch, as bytes.
template <class Loader>
std::vector<std::vector<float>> batches_of(Loader& loader) {
  std::vector<std::vector<float>> batches;
  for (const auto& [images, targets] : loader) {
    batches.push_back(images.template to_vector<float>());
    for (const std::int64_t target : targets.template to_vector<std::int64_t>())
      batches.back().push_back(static_cast<float>(target));
  }
  return batches;
}

}  // namespace

TEST_CASE("classes and samples have torchvision's order") {
  fs::remove_all("root");
  const std::string image = png_of_color(2, 2, 1, 2, 3);
  for (const char* const path : {"b/z.png", "b/10.JPG", "b/9.jpeg", "B/x.png", "\xc3\xa9/x.png", "b/sub/y.png",
                                 "b/sub-2/a.png", "b/sub/deep/c.png", "b/notes.txt", "b/.png", "file.png"})
    write_image(std::string("root/") + path, image);
  const ImageFolder folder("root");
  CHECK(folder.classes() == std::vector<std::string>{"B", "b", "\xc3\xa9"});
  CHECK(folder.class_to_idx() == std::map<std::string, std::int64_t>{{"B", 0}, {"b", 1}, {"\xc3\xa9", 2}});
  // torchvision.datasets.ImageFolder("root").samples of the same files.
  CHECK(paths_of(folder) == std::vector<std::string>{"root/B/x.png:0", "root/b/.png:1", "root/b/10.JPG:1",
                                                     "root/b/9.jpeg:1", "root/b/z.png:1", "root/b/sub/y.png:1",
                                                     "root/b/sub-2/a.png:1", "root/b/sub/deep/c.png:1",
                                                     "root/\xc3\xa9/x.png:2"});
  CHECK(folder.size() == 9);
  CHECK(ImageFolder("root/", {.extensions = {"notes.txt"}, .allow_empty = true}).samples()[0].path ==
        "root/b/notes.txt");
  const auto& [pixels, target] = folder.get(4);
  CHECK(same_bits(pixels, tf::ConvertImageDtype()(decode_image(bytes_of(image)))));
  CHECK(target.item<std::int64_t>() == 1);
  CHECK(target.dim() == 0);
  CHECK(ImageFolder("root", {.mode = ImageReadMode::kGray}).get(0).input.shape() == ls::Shape{1, 2, 2});
}

TEST_CASE("batches are the same whatever the workers, after skipping, and on the ranks together") {
  new_root();
  ls::manual_seed(5);
  const auto set = folder_of({.transform = one_size()});
  DataLoader plain(set, {.batch_size = 5, .shuffle = true});
  const auto first = batches_of(plain), second = batches_of(plain);
  CHECK(first != second);
  for (const std::int64_t workers : {0, 1, 3}) {
    DataLoader loader(set, {.batch_size = 5, .shuffle = true, .num_workers = workers});
    CHECK(batches_of(loader) == first);
    loader.set_epoch(1);
    loader.skip(3);
    CHECK(batches_of(loader) == std::vector(second.begin() + 3, second.end()));
    for (const std::int64_t ranks : {1, 2, 3}) {
      std::map<std::int64_t, std::vector<float>> found;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        DistributedSampler sampler(set->size(), ranks, rank, {.shuffle = false});
        DataLoader own(set, {.sampler = std::make_shared<DistributedSampler>(sampler), .num_workers = workers});
        std::int64_t index = rank;
        for (auto& batch : batches_of(own)) found[index] = batch, index += ranks;
      }
      CHECK(found.size() == 24);
      const ls::data::detail::SampleGuard epoch({.epoch = 0});
      for (const auto& [index, batch] : found) {
        const Rows rows = {index};
        const Example want = set->get_batch(rows);
        std::vector<float> values = want.input.to_vector<float>();
        values.push_back(want.target[0].item<float>());
        CHECK(batch == values);
      }
    }
  }
}

TEST_CASE("folders that hold no data set are errors") {
  fs::remove_all("root");
  CHECK(contains(folder_error(), "ImageFolder: root: cannot list the folder: No such file"));
  fs::create_directory("root");
  write_file("root/1.png", png_of_color(1, 1, 0, 0, 0));
  CHECK(contains(folder_error(), "root: expected a folder for each class, found no folder"));
  CHECK(contains(folder_error({}, "root/1.png"), "root/1.png: cannot list the folder: Not a directory"));
  for (const char* const name : {"a", "c", "b", "d", "e", "f"}) fs::create_directories("root/" + std::string(name));
  write_image("root/g/1.png", png_of_color(1, 1, 0, 0, 0));
  CHECK(contains(folder_error(), "6 of 7 classes have no image (.jpg, .jpeg, .png): a, b, c, d, e, ..."));
  CHECK(contains(folder_error({.allow_empty = false}), ".allow_empty = true"));
  CHECK(folder_of({.allow_empty = true})->samples()[0].target == 6);
  CHECK(contains(error_of([] { ImageFolder("root", {.extensions = {}}); }), ".extensions is empty"));
  fs::create_directory_symlink("..", "root/g/up");
  CHECK(contains(folder_error({.allow_empty = true}), "a link to a folder that contains it; remove it"));
  fs::remove("root/g/up");
  fs::create_directory_symlink("../a", "root/g/other");  // followed
  write_image("root/a/2.png", png_of_color(1, 1, 0, 0, 0));
  CHECK(paths_of(*folder_of({.allow_empty = true})) ==
        std::vector<std::string>{"root/a/2.png:0", "root/g/1.png:6", "root/g/other/2.png:6"});
}

TEST_CASE("files and transforms that fail are errors that name the file, also from workers") {
  new_root();
  const auto error = [](const auto& use) { return error_of<ls::Error>(use); };
  const auto set = folder_of({});
  CHECK(contains(error([&] { static_cast<void>(set->get(24)); }), "ImageFolder: index 24 is outside [0, 24)"));
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(set, {.batch_size = 2, .num_workers = workers});
    const std::string differ = error([&] { batches_of(loader); });
    CHECK(contains(differ, "root/a/100.png is (3, 4, 5) f32 cpu, root/a/101.png is (3, 5, 6) f32 cpu"));
    CHECK(contains(differ, "Resize and CenterCrop"));
  }
  const auto wrong = folder_of({.transform = std::make_shared<tf::Resize>(4)});
  CHECK(
      contains(error([&] { static_cast<void>(wrong->get(0)); }), "root/a/100.png: Resize: the image is (4, 5, 3) u8"));
  fs::create_symlink("nowhere", "root/a/0.png");
  write_file("root/b/0.png", "no image");
  const auto broken = folder_of({.transform = one_size()});
  CHECK(broken->size() == 26);
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(broken, {.batch_size = 3, .num_workers = workers});
    CHECK(contains(error([&] { batches_of(loader); }), "root/a/0.png: cannot open"));
    loader.set_epoch(0);
    loader.skip(1);
    CHECK(contains(error([&] { batches_of(loader); }), "root/b/0.png: expected a PNG or JPEG image"));
  }
}
