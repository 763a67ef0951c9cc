/// \file
/// Images from PNG and JPEG files, and data sets of them, by torchvision's names.
///
///     auto set = std::make_shared<data::ImageFolder>("train", data::ImageFolderOptions{
///         .transform = std::make_shared<transforms::Compose>(transforms::ToTensor(), transforms::Resize(256),
///                                                            transforms::CenterCrop(224))});
///     data::DataLoader loader(set, {.batch_size = 32, .shuffle = true, .num_workers = 2});
///
/// libpng and libjpeg are opened on first use, as the modules png and jpeg. A build without one throws NotBuilt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/transforms.h"

namespace lockstep::data {

/// The channels of a decoded image. Grey is 0.299 R + 0.587 G + 0.114 B; an image without alpha gets alpha 255.
enum class ImageReadMode : std::uint8_t {
  kUnchanged,  ///< those of the file; palettes and CMYK become RGB, and transparent colours an alpha channel
  kGray,       ///< 1
  kGrayAlpha,  ///< 2
  kRgb,        ///< 3
  kRgbAlpha,   ///< 4
};

/// Options of read_image and decode_image.
struct ImageOptions {
  ImageReadMode mode = ImageReadMode::kUnchanged;  ///< the channels of the result
  std::int64_t max_pixels = 178'956'970;           ///< larger images are an IoError; the default is Pillow's limit
};

/// The image of a PNG or JPEG file, told by its first bytes: u8 (channels, height, width). 16 bits are rounded to 8.
/// The orientation in EXIF data, gamma and colour profiles are not applied, as by torchvision. Throws IoError, with the
/// file's name, for a file that is damaged, incomplete or anything else, for arithmetic coding, and for more pixels
/// than the size of the file allows. The memory needed is that of the file, the tensor and 64 MiB, and for a JPEG file of
/// several scans (progressive) 2 bytes for every pixel of every component.
Tensor read_image(const std::string& path, const ImageOptions& options = {});
/// The same from memory; error messages use `name` as the file name.
Tensor decode_image(std::span<const std::byte> bytes, const ImageOptions& options = {},
                    const std::string& name = "decode_image");

/// One file of an ImageFolder.
struct ImageSample {
  std::string path;     ///< begins with the root
  std::int64_t target;  ///< index of the class
};

/// Options of ImageFolder.
struct ImageFolderOptions {
  /// Called with each image, u8 (height, width, channels). By default transforms::ToTensor: f32 (channels, height, width)
  /// from 0 to 1. Images of different sizes need one that makes them one size to form a batch.
  std::shared_ptr<const transforms::Transform> transform = {};
  ImageReadMode mode = ImageReadMode::kRgb;                         ///< the channels of the images
  std::vector<std::string> extensions = {".jpg", ".jpeg", ".png"};  ///< of files that are images, in lower case
  bool allow_empty = false;                                         ///< true: a class without images is not an error
};

/// A data set of image files in one folder for each class: `root/cat/1.png`, `root/dog/more/2.jpg`. Classes are sorted by
/// name, samples by class, folder and name, and names are compared by bytes, all as in torchvision. An example is the
/// transformed image and its class, a 0-d i64. Files are read when an example is made, by the loader's workers.
class ImageFolder : public Dataset {
 public:
  /// Lists the files. Throws IoError for a root without folders, for classes without images, for a folder that cannot be
  /// listed, and for a symbolic link to a folder above it.
  explicit ImageFolder(const std::string& root, ImageFolderOptions options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  Example get(std::int64_t index) const override;  ///< errors name the file
  Example get_batch(std::span<const std::int64_t> rows) const override;

  const std::vector<std::string>& classes() const { return classes_; }                       ///< sorted names
  const std::map<std::string, std::int64_t>& class_to_idx() const { return class_to_idx_; }  ///< class by name
  const std::vector<ImageSample>& samples() const { return samples_; }                       ///< by index

 private:
  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::map<std::string, std::int64_t> class_to_idx_;
  std::vector<ImageSample> samples_;
};

}  // namespace lockstep::data
