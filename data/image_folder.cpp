#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/data/images.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// The entries of a folder, in any order. Throws IoError.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    entries.push_back(*entry);
  LOCKSTEP_CHECK_IO(!error, "ImageFolder: {}: cannot list the folder: {}", folder.string(), error.message());
  return entries;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code error;  // a link that leads nowhere is no folder
  return entry.is_directory(error);
}

bool has_extension(const fs::path& file, const std::vector<std::string>& extensions) {
  std::string name = file.filename().string();
  std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return std::ranges::any_of(extensions, [&](const std::string& extension) { return name.ends_with(extension); });
}

using Found = std::vector<std::pair<std::string, std::string>>;  // folder and name

// Adds the images in `folder` and below. `above` are the folders that lead to it, without links.
void find_images(const fs::path& folder, const std::vector<std::string>& extensions, std::vector<fs::path>& above,
                 Found& found) {
  std::error_code error;
  above.push_back(fs::canonical(folder, error));
  LOCKSTEP_CHECK_IO(!error, "ImageFolder: {}: cannot open the folder: {}", folder.string(), error.message());
  LOCKSTEP_CHECK_IO(std::ranges::count(above, above.back()) == 1,
                    "ImageFolder: {}: a link to a folder that contains it; remove it", folder.string());
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (is_folder(entry)) {
      find_images(entry.path(), extensions, above, found);
    } else if (has_extension(entry.path(), extensions)) {
      found.emplace_back(folder.string(), entry.path().filename().string());
    }
  }
  above.pop_back();
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  const auto shown = std::span(names).first(std::min(names.size(), kMost));
  return fmt::format("{}{}", fmt::join(shown, ", "), names.size() > kMost ? ", ..." : "");
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, ImageFolderOptions options) : options_(std::move(options)) {
  LOCKSTEP_CHECK(!options_.extensions.empty(), "ImageFolder: .extensions is empty");
  if (!options_.transform) options_.transform = std::make_shared<transforms::ToTensor>();
  for (const fs::directory_entry& entry : entries_of(root)) {
    if (is_folder(entry)) classes_.push_back(entry.path().filename().string());
  }
  LOCKSTEP_CHECK_IO(!classes_.empty(), "ImageFolder: {}: expected a folder for each class, found no folder", root);
  std::ranges::sort(classes_);
  std::vector<std::string> empty;
  for (const std::string& name : classes_) {
    const std::int64_t target = static_cast<std::int64_t>(class_to_idx_.size());
    class_to_idx_[name] = target;
    Found found;
    std::vector<fs::path> above;
    find_images(fs::path(root) / name, options_.extensions, above, found);
    std::ranges::sort(found);
    for (const auto& [folder, file] : found) samples_.push_back({(fs::path(folder) / file).string(), target});
    if (found.empty()) empty.push_back(name);
  }
  LOCKSTEP_CHECK_IO(empty.empty() || options_.allow_empty,
                    "ImageFolder: {}: {} of {} classes have no image ({}): {}\nSet .extensions, or .allow_empty = true",
                    root, empty.size(), classes_.size(), fmt::join(options_.extensions, ", "), list_of(empty));
}

Example ImageFolder::get(std::int64_t index) const {
  detail::check_rows("ImageFolder", {&index, 1}, size());
  const ImageSample& sample = samples_[static_cast<std::size_t>(index)];
  const Tensor image = read_image(sample.path, {.mode = options_.mode});
  try {
    return {(*options_.transform)(raw::contiguous(raw::permute(image, {1, 2, 0}))),
            raw::full(Shape(), static_cast<double>(sample.target), {.dtype = kInt64})};
  } catch (Error& error) {
    error.add_context(sample.path);
    throw;
  }
}

Example ImageFolder::get_batch(std::span<const std::int64_t> rows) const {
  const std::vector<Example> examples = get_each(rows);
  for (std::size_t i = 1; i < examples.size(); ++i) {
    const Tensor &first = examples[0].input, &image = examples[i].input;
    LOCKSTEP_CHECK(image.shape() == first.shape(),
                   "ImageFolder: the images of a batch differ in size: {} is {}, {} is {}\n"
                   "Make them one size by .transform, for example with Resize and CenterCrop",
                   samples_[static_cast<std::size_t>(rows[0])].path, describe(first),
                   samples_[static_cast<std::size_t>(rows[i])].path, describe(image));
  }
  return stack_examples(examples);
}

}  // namespace lockstep::data
