/// \file
/// Data sets as LibTorch's programs make them:
///
///     auto set = datasets::MNIST(root).map(transforms::Normalize<>(0.1307, 0.3081)).map(transforms::Stack<>());
///     auto loader = make_data_loader(std::move(set), 64);
///     for (auto& batch : *loader) ...
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lockstep/data/dataloader.h"
#include "lockstep/data/readers.h"
#include "lockstep/data/samplers.h"
#include "lockstep/data/transforms.h"

namespace lockstep::data {

namespace transforms {
/// Makes a batch of examples, which loaders do anyway: map(Stack<>()) changes nothing.
template <class E = Example>
struct Stack {};
}  // namespace transforms

namespace samplers {
using data::RandomSampler, data::SequentialSampler;
}  // namespace samplers

namespace datasets {

/// A data set whose inputs are transformed when an example is read. Workers call the transform at the same time.
template <std::derived_from<Dataset> D, std::derived_from<transforms::Transform> T>
class MapDataset : public Dataset {
 public:
  MapDataset(D dataset, T transform) : dataset_(std::move(dataset)), transform_(std::move(transform)) {}
  std::int64_t size() const override { return dataset_.size(); }
  Example get(std::int64_t index) const override {
    const Example example = dataset_.get(index);
    return {transform_(example.input), example.target};
  }
  /// The data set with a further transform, of the transformed inputs.
  template <std::derived_from<transforms::Transform> U>
  MapDataset<MapDataset, U> map(U transform) const {
    return {*this, std::move(transform)};
  }
  MapDataset map(transforms::Stack<>) const { return *this; }

 private:
  D dataset_;
  T transform_;
};

/// MNIST, or Fashion-MNIST, from a folder with the four files, unpacked: images (1, 28, 28) f32 with pixels in [0, 1], and
/// 0-d i64 labels. Throws IoError if a file is missing or damaged.
class MNIST : public IdxDataset {
 public:
  enum class Mode : std::uint8_t { kTrain, kTest };  ///< the 60,000 images for training, or the 10,000 others
  explicit MNIST(const std::string& root, Mode mode = Mode::kTrain)
      : IdxDataset(root + (mode == Mode::kTrain ? "/train" : "/t10k") + "-images-idx3-ubyte",
                   root + (mode == Mode::kTrain ? "/train" : "/t10k") + "-labels-idx1-ubyte") {}
  Example get_batch(std::span<const std::int64_t> rows) const override {
    const Example batch = IdxDataset::get_batch(rows);
    return {batch.input.unsqueeze(1), batch.target};
  }
  /// The data set with transformed images.
  template <std::derived_from<transforms::Transform> T>
  MapDataset<MNIST, T> map(T transform) const {
    return {*this, std::move(transform)};
  }
  MNIST map(transforms::Stack<>) const { return *this; }
};

}  // namespace datasets

/// A loader of a copy of the data set, in random order unless the sampler is another one: as in LibTorch, and unlike
/// DataLoader, which keeps the order of the data set unless `.shuffle` is set. Throws InvalidArgument for `.sampler`.
template <std::derived_from<Sampler> S = RandomSampler, std::derived_from<Dataset> D>
std::unique_ptr<DataLoader<Example>> make_data_loader(D dataset, DataLoaderOptions options) {
  if (options.sampler || options.batch_sampler)
    throw InvalidArgument("make_data_loader: the sampler is a template argument");
  options.sampler = std::make_shared<S>(dataset.size());
  return std::make_unique<DataLoader<Example>>(std::make_shared<const D>(std::move(dataset)), std::move(options));
}
/// The same with batches of this size.
template <std::derived_from<Sampler> S = RandomSampler, std::derived_from<Dataset> D>
std::unique_ptr<DataLoader<Example>> make_data_loader(D dataset, std::int64_t batch_size) {
  return make_data_loader<S>(std::move(dataset), DataLoaderOptions{.batch_size = batch_size});
}

}  // namespace lockstep::data
