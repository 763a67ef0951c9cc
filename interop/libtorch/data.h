/// \file
/// Data sets and loaders as LibTorch has them: examples with `data` and `target`. See interop/libtorch.h.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/data/datasets.h"

namespace lockstep::libtorch::data {

using namespace lockstep::data;

/// A sample or a batch.
template <class Data = Tensor, class Target = Tensor>
struct Example {
  Data data = {};      ///< the input
  Target target = {};  ///< the label
};

namespace transforms {
using namespace lockstep::data::transforms;
/// Makes one example of a batch, which loaders do anyway.
template <class E = Example<>>
struct Stack {};
/// The base of transforms of inputs. Workers call them at the same time.
template <class Target = Tensor>
class TensorTransform {
 public:
  virtual ~TensorTransform() = default;
  virtual Tensor operator()(Tensor input) = 0;  ///< the transformed input
};
/// A function of the input.
template <class Target = Tensor>
struct TensorLambda : std::function<Tensor(Tensor)> {
  using function::function;
};
/// A function of the example.
template <class E = Example<>>
struct Lambda : std::function<E(E)> {
  using std::function<E(E)>::function;
};
}  // namespace transforms

namespace datasets {
using namespace lockstep::data::datasets;

template <class D, class T>
class MapDataset;

/// The base of data sets: derived classes have `get` and `size`. Workers call `get` at the same time.
template <class Self, class E = Example<>>
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// The example at `index`.
  virtual E get(std::size_t index) = 0;
  /// The number of examples; a loader with a sampler needs it.
  virtual std::optional<std::size_t> size() const = 0;
  /// The data set with transformed inputs, or examples. Stack changes nothing.
  template <class T>
  requires(std::invocable<T&, const Tensor&> || std::invocable<T&, const E&>) MapDataset<Self, T> map(T transform) {
    return {std::move(static_cast<Self&>(*this)), std::move(transform)};
  }
  Self map(transforms::Stack<>) { return std::move(static_cast<Self&>(*this)); }
};

/// A data set whose inputs, or examples, are transformed when an example is read.
template <class D, class T>
class MapDataset : public Dataset<MapDataset<D, T>> {
 public:
  MapDataset(D dataset, T transform) : dataset_(std::move(dataset)), transform_(std::move(transform)) {}
  Example<> get(std::size_t index) override {
    Example<> example = dataset_.get(index);
    if constexpr (std::invocable<T&, const Tensor&>)
      return {transform_(example.data), example.target};
    else
      return transform_(example);
  }
  std::optional<std::size_t> size() const override { return dataset_.size(); }

 private:
  D dataset_;
  T transform_;
};

/// MNIST, or Fashion-MNIST: see lockstep::data::datasets::MNIST.
class MNIST : public Dataset<MNIST> {
 public:
  using Mode = lockstep::data::datasets::MNIST::Mode;  ///< kTrain or kTest
  explicit MNIST(const std::string& root, Mode mode = Mode::kTrain) : examples_(root, mode) {}
  Example<> get(std::size_t index) override {
    const auto example = examples_.get(static_cast<std::int64_t>(index));
    return {example.input, example.target};
  }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(examples_.size()); }

 private:
  lockstep::data::datasets::MNIST examples_;
};

}  // namespace datasets

/// Options of a loader with setters. Batches keep the sampler's order for any number of workers.
struct DataLoaderOptions {
  DataLoaderOptions(std::size_t batch_size = 1)  // NOLINT: implicit, as in LibTorch
      : fields{.batch_size = static_cast<std::int64_t>(batch_size)} {}
  /// Samples per batch.
  DataLoaderOptions& batch_size(std::size_t size) {
    fields.batch_size = static_cast<std::int64_t>(size);
    return *this;
  }
  /// Worker threads; 0: the iterating thread makes the batches.
  DataLoaderOptions& workers(std::size_t count) {
    fields.num_workers = static_cast<std::int64_t>(count);
    return *this;
  }
  /// Whether an incomplete last batch is dropped.
  DataLoaderOptions& drop_last(bool on) {
    fields.drop_last = on;
    return *this;
  }
  lockstep::data::DataLoaderOptions fields;  ///< Lockstep's options
};

/// A loader whose batches are Example<>: `for (auto& batch : *loader)`.
class DataLoader {
 public:
  /// The position in an epoch; reads the next batch when it is incremented.
  class Iterator {
   public:
    explicit Iterator(lockstep::data::DataLoader<>::Iterator batches) : batches_(std::move(batches)) { read(); }
    Example<>& operator*() { return batch_; }    ///< the batch
    Example<>* operator->() { return &batch_; }  ///< the batch
    Iterator& operator++() {                     ///< the next batch
      batch_ = {};                               // first, so that the next batch can reuse the memory
      ++batches_;
      read();
      return *this;
    }
    /// Whether the epoch has ended.
    friend bool operator==(const Iterator& at, std::default_sentinel_t end) { return at.batches_ == end; }

   private:
    void read() {
      if (batches_ != std::default_sentinel) batch_ = {batches_->input, batches_->target};
    }
    lockstep::data::DataLoader<>::Iterator batches_;
    Example<> batch_;
  };
  explicit DataLoader(std::unique_ptr<lockstep::data::DataLoader<>> loader) : loader_(std::move(loader)) {}
  Iterator begin() { return Iterator(loader_->begin()); }  ///< begins an epoch
  std::default_sentinel_t end() const { return {}; }       ///< end of the epoch

 private:
  std::unique_ptr<lockstep::data::DataLoader<>> loader_;
};

/// A loader of the data set, in random order unless the sampler is another one.
template <class S = RandomSampler, class D>
std::unique_ptr<DataLoader> make_data_loader(D dataset, const DataLoaderOptions& options = {}) {
  struct Adapter : lockstep::data::Dataset {
    explicit Adapter(D from) : examples(std::move(from)) {}
    std::int64_t size() const override { return static_cast<std::int64_t>(examples.size().value()); }
    lockstep::data::Example get(std::int64_t index) const override {
      const auto example = examples.get(static_cast<std::size_t>(index));
      return {example.data, example.target};
    }
    mutable D examples;  ///< mutable: LibTorch's get is not const
  };
  auto adapter = std::make_shared<Adapter>(std::move(dataset));
  lockstep::data::DataLoaderOptions fields = {.batch_size = options.fields.batch_size,
                                              .sampler = std::make_shared<S>(adapter->size()),
                                              .num_workers = options.fields.num_workers,
                                              .drop_last = options.fields.drop_last};
  return std::make_unique<DataLoader>(
      std::make_unique<lockstep::data::DataLoader<>>(std::move(adapter), std::move(fields)));
}

}  // namespace lockstep::libtorch::data
