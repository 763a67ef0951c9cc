/// \file
/// Transforms of images, by torchvision's names. In a data set that a DataLoader reads, a random transform's draws are a
/// function of the seed of manual_seed, the epoch, the example's index and the number of its draws so far: they do not
/// depend on workers, ranks or batches. Elsewhere they are ordinary draws (tensor/random/random.h).
///
///     const transforms::Compose transform(transforms::ToTensor(), transforms::RandomCrop(32, {.padding = 4}),
///                                         transforms::RandomHorizontalFlip());
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/tensor/size2d.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data::transforms {

/// A function of an image. Several threads call it at once.
class Transform {
 public:
  virtual ~Transform() = default;
  virtual Tensor operator()(const Tensor& image) const = 0;  ///< the transformed image
};

/// Transforms one after another.
class Compose : public Transform {
 public:
  template <class... T>
  explicit Compose(T... transforms) : transforms_{std::make_shared<const T>(std::move(transforms))...} {}
  Tensor operator()(const Tensor& image) const override;

 private:
  std::vector<std::shared_ptr<const Transform>> transforms_;
};

/// (height, width, channels) or (height, width), u8, to (channels, height, width), f32 from 0 to 1: divided by 255. Other
/// dtypes keep their values and dtype.
class ToTensor : public Transform {
 public:
  Tensor operator()(const Tensor& image) const override;
};

/// u8 to `dtype`, divided by 255, in any shape: for images of read_image, whose channels come first. Floating-point numbers
/// keep their values. Throws InvalidArgument for other dtypes.
class ConvertImageDtype : public Transform {
 public:
  explicit ConvertImageDtype(DType dtype = kFloat32);
  Tensor operator()(const Tensor& image) const override;

 private:
  DType dtype_;
};

/// (x - mean[c]) / std[c] for each channel c of x (channels, height, width), floating-point. One number serves all
/// channels. Throws InvalidArgument for a deviation of 0, and for another number of channels. Target, as in LibTorch, is
/// always Tensor: Normalize<>(0.5, 0.5) or Normalize(0.5, 0.5).
template <class Target = Tensor>
class Normalize : public Transform {
 public:
  Normalize(std::vector<double> mean, std::vector<double> std);
  template <std::convertible_to<double> T, std::convertible_to<double> U>  // not of braces: those are vectors
  Normalize(T mean, U std) : Normalize(std::vector{static_cast<double>(mean)}, std::vector{static_cast<double>(std)}) {}
  Tensor operator()(const Tensor& image) const override;

 private:
  std::vector<double> mean_, std_;
};
extern template class Normalize<Tensor>;

/// The middle of (..., height, width). A smaller image is padded with zeros.
class CenterCrop : public Transform {
 public:
  explicit CenterCrop(Size2d size);
  Tensor operator()(const Tensor& image) const override;

 private:
  Size2d size_;
};

/// Options of RandomCrop.
struct RandomCropOptions {
  Size2d padding = 0;  ///< zeros added at the top and bottom, and at the left and right, before the crop
};

/// A part of (..., height, width) at a random place, each place equally likely. Throws InvalidArgument for an image that is
/// smaller with its padding.
class RandomCrop : public Transform {
 public:
  explicit RandomCrop(Size2d size, const RandomCropOptions& options = {});
  Tensor operator()(const Tensor& image) const override;

 private:
  Size2d size_, padding_;
};

/// Reverses the last dimension with probability p.
class RandomHorizontalFlip : public Transform {
 public:
  explicit RandomHorizontalFlip(double p = 0.5);
  Tensor operator()(const Tensor& image) const override;

 private:
  double p_;
};

/// Options of Resize.
struct ResizeOptions {
  bool antialias = true;  ///< false: an output pixel depends on the nearest 2 x 2 pixels only
};

/// Resizes (..., height, width), floating-point, bilinearly, as torchvision resizes tensors. One number is the length of
/// the shorter side; the other one keeps the ratio, rounded down.
class Resize : public Transform {
 public:
  explicit Resize(std::int64_t shorter_side, const ResizeOptions& options = {});
  explicit Resize(Size2d size, const ResizeOptions& options = {});
  Tensor operator()(const Tensor& image) const override;

 private:
  Size2d size_;
  bool keeps_ratio_, antialias_;
};

}  // namespace lockstep::data::transforms
