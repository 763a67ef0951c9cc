#include "lockstep/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/data/sample_context.h"
#include "lockstep/tensor/ops/ops_internal.h"
#include "lockstep/tensor/random/random.h"
#include "lockstep/tensor/random/random_ops_internal.h"

namespace lockstep::data {

namespace {
constinit thread_local detail::SampleContext context_now;
}

detail::SampleContext& detail::sample_context() { return context_now; }

namespace transforms {

namespace {

constexpr std::uint64_t kSite = 0x7472616e73;  // of all transforms: 40 bits that no path's hash is likely to have

// In [0, 1).
double draw() {
  detail::SampleContext& sample = detail::sample_context();
  const TensorOptions options{.dtype = kFloat64};
  if (sample.index < 0) return raw::uniform({1}, 0, 1, options).item<double>();
  const auto index = static_cast<std::uint64_t>(sample.index), epoch = static_cast<std::uint64_t>(sample.epoch);
  const random::Position position{.seed = random::seed(),
                                  .stream = kSite << (64 - random::kSiteBits) | (epoch & 0xffffff),
                                  .offset = index << 8 | (static_cast<std::uint64_t>(sample.draws++) & 0xff)};
  return raw::uniform_at(position, 0, {1}, 0, 1, options).item<double>();
}

// In [0, n].
std::int64_t draw_up_to(std::int64_t n) {
  return std::min(n, static_cast<std::int64_t>(draw() * static_cast<double>(n + 1)));
}

Size2d size_of(const char* op, const Tensor& image) {
  LOCKSTEP_CHECK(image.defined() && image.dim() >= 2, "{}: the image is {}, expected (..., height, width)", op,
                 describe(image));
  return {image.size(-2), image.size(-1)};
}

Size2d positive(const char* op, Size2d size) {
  LOCKSTEP_CHECK(size.height > 0 && size.width > 0, "{}: the size is ({}, {}), expected positive numbers", op,
                 size.height, size.width);
  return size;
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t first, std::int64_t count) {
  return raw::slice(x, dim, first, first + count, 1);
}

// With the dtype and device of `like`.
Tensor constant(const std::vector<double>& values, const Shape& shape, const Tensor& like) {
  return raw::to(raw::to(raw::from_bytes(values.data(), shape, kFloat64), like.dtype()), like.device());
}

// The part of `image`, with zeros where it lies outside.
Tensor crop(const Tensor& image, std::int64_t top, std::int64_t left, Size2d size) {
  const std::int64_t height = image.size(-2), width = image.size(-1);
  const std::int64_t first_row = std::clamp<std::int64_t>(top, 0, height),
                     first_column = std::clamp<std::int64_t>(left, 0, width);
  const std::int64_t rows = std::clamp<std::int64_t>(top + size.height, first_row, height) - first_row;
  const std::int64_t columns = std::clamp<std::int64_t>(left + size.width, first_column, width) - first_column;
  const Tensor part = narrow(narrow(image, -2, first_row, rows), -1, first_column, columns);
  if (rows == size.height && columns == size.width) return raw::contiguous(part);
  Shape shape = image.shape();
  shape[shape.size() - 2] = size.height;
  shape[shape.size() - 1] = size.width;
  const Tensor padded = raw::zeros(shape, image.options());
  raw::copy(part, narrow(narrow(padded, -2, first_row - top, rows), -1, first_column - left, columns));
  return padded;
}

// (out, in): the weights of a triangle filter, as PyTorch's bilinear interpolation with antialias = true
// (aten/src/ATen/native/cpu/UpSampleKernel.cpp, HelperInterpBase::_compute_indices_weights_aa). Without antialias the
// triangle covers two pixels, also where the image shrinks; at the edges both are the same.
Tensor filter(std::int64_t in, std::int64_t out, bool antialias, const Tensor& like) {
  const double scale = static_cast<double>(in) / static_cast<double>(out),
               support = antialias ? std::max(scale, 1.0) : 1;
  std::vector<double> weights(static_cast<std::size_t>(in * out), 0);
  for (std::int64_t o = 0; o < out; ++o) {
    const double center = scale * (static_cast<double>(o) + 0.5);
    const auto first = std::max<std::int64_t>(static_cast<std::int64_t>(center - support + 0.5), 0);
    const auto last = std::min<std::int64_t>(static_cast<std::int64_t>(center + support + 0.5), in);
    const auto row = weights.begin() + o * in;
    double sum = 0;
    for (std::int64_t i = first; i < last; ++i)
      sum += row[i] = std::max(0.0, 1 - std::abs((static_cast<double>(i) - center + 0.5) / support));
    for (std::int64_t i = first; i < last; ++i) row[i] /= sum;
  }
  return constant(weights, {out, in}, like);
}

}  // namespace

Tensor Compose::operator()(const Tensor& image) const {
  Tensor x = image;
  for (const auto& transform : transforms_) x = (*transform)(x);
  return x;
}

Tensor ToTensor::operator()(const Tensor& image) const {
  LOCKSTEP_CHECK(image.defined() && (image.dim() == 2 || image.dim() == 3),
                 "ToTensor: the image is {}, expected (height, width, channels) or (height, width)", describe(image));
  const Tensor planes = image.dim() == 2 ? raw::unsqueeze(image, 0) : raw::contiguous(raw::permute(image, {2, 0, 1}));
  return image.dtype() == kUInt8 ? raw::div(raw::to(planes, kFloat32),
                                            raw::full(Shape(), 255, {.dtype = kFloat32, .device = image.device()}))
                                 : planes;
}

ConvertImageDtype::ConvertImageDtype(DType dtype) : dtype_(dtype) {
  LOCKSTEP_CHECK(is_floating_point(dtype), "ConvertImageDtype: the dtype is {}, expected a floating-point one",
                 name(dtype));
}

Tensor ConvertImageDtype::operator()(const Tensor& image) const {
  LOCKSTEP_CHECK(image.defined() && (image.dtype() == kUInt8 || is_floating_point(image.dtype())),
                 "ConvertImageDtype: the image is {}, expected u8 or floating-point numbers", describe(image));
  const Tensor x = raw::to(image, dtype_);
  return image.dtype() == kUInt8 ? raw::div(x, raw::full(Shape(), 255, {.dtype = dtype_, .device = image.device()}))
                                 : x;
}

template <class Target>
Normalize<Target>::Normalize(std::vector<double> mean, std::vector<double> std)
    : mean_(std::move(mean)), std_(std::move(std)) {
  LOCKSTEP_CHECK(!mean_.empty() && mean_.size() == std_.size(),
                 "Normalize: {} means and {} deviations, expected one each for every channel", mean_.size(),
                 std_.size());
  LOCKSTEP_CHECK(std::ranges::find(std_, 0.0) == std_.end(), "Normalize: a standard deviation is 0");
}

template <class Target>
Tensor Normalize<Target>::operator()(const Tensor& image) const {
  const auto channels = static_cast<std::int64_t>(mean_.size());
  LOCKSTEP_CHECK(
      image.defined() && image.dim() == 3 && is_floating_point(image.dtype()) &&
          (channels == 1 || image.size(0) == channels),
      "Normalize: the image is {}, expected ({}, height, width) of floating-point numbers; call ToTensor first",
      describe(image), channels);
  const Shape shape = {channels, 1, 1};
  return raw::div(raw::sub(image, constant(mean_, shape, image)), constant(std_, shape, image));
}
template class Normalize<Tensor>;

CenterCrop::CenterCrop(Size2d size) : size_(positive("CenterCrop", size)) {}

// torchvision rounds a half to the even number, as Python does; of a padded image the odd row is below and right.
Tensor CenterCrop::operator()(const Tensor& image) const {
  const Size2d from = size_of("CenterCrop", image);
  const auto first = [](std::int64_t length, std::int64_t wanted) {
    if (length < wanted) return -((wanted - length) / 2);
    return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(length - wanted) / 2));
  };
  return crop(image, first(from.height, size_.height), first(from.width, size_.width), size_);
}

RandomCrop::RandomCrop(Size2d size, const RandomCropOptions& options)
    : size_(positive("RandomCrop", size)), padding_(options.padding) {
  LOCKSTEP_CHECK(padding_.height >= 0 && padding_.width >= 0, "RandomCrop: .padding is ({}, {}), expected at least 0",
                 padding_.height, padding_.width);
}

Tensor RandomCrop::operator()(const Tensor& image) const {
  const Size2d from = size_of("RandomCrop", image);
  const std::int64_t rows = from.height + 2 * padding_.height - size_.height,
                     columns = from.width + 2 * padding_.width - size_.width;
  LOCKSTEP_CHECK(rows >= 0 && columns >= 0,
                 "RandomCrop: the image is {}, smaller with its padding than ({}, {}); set .padding, or resize first",
                 describe(image), size_.height, size_.width);
  const std::int64_t top = draw_up_to(rows), left = draw_up_to(columns);
  return crop(image, top - padding_.height, left - padding_.width, size_);
}

RandomHorizontalFlip::RandomHorizontalFlip(double p) : p_(p) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "RandomHorizontalFlip: p is {}, expected a probability", p);
}

Tensor RandomHorizontalFlip::operator()(const Tensor& image) const {
  size_of("RandomHorizontalFlip", image);
  return draw() < p_ ? raw::flip(image, {-1}) : image;
}

Resize::Resize(std::int64_t shorter_side, const ResizeOptions& options)
    : size_(positive("Resize", shorter_side)), keeps_ratio_(true), antialias_(options.antialias) {}
Resize::Resize(Size2d size, const ResizeOptions& options)
    : size_(positive("Resize", size)), keeps_ratio_(false), antialias_(options.antialias) {}

Tensor Resize::operator()(const Tensor& image) const {
  const Size2d from = size_of("Resize", image);
  LOCKSTEP_CHECK(is_floating_point(image.dtype()) && from.height > 0 && from.width > 0,
                 "Resize: the image is {}, expected floating-point numbers and no empty side; call ToTensor first",
                 describe(image));
  Size2d to = size_;
  if (keeps_ratio_ && from.height < from.width) to.width = to.height * from.width / from.height;
  if (keeps_ratio_ && from.height > from.width) to.height = to.width * from.height / from.width;
  if (to == from) return image;
  const Tensor columns = filter(from.width, to.width, antialias_, image),
               rows = filter(from.height, to.height, antialias_, image);
  return raw::matmul(rows, raw::matmul(image, raw::transpose(columns, 0, 1)));
}

}  // namespace transforms
}  // namespace lockstep::data
