// Tensors on a releasable storage whose memory moves and is released.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "lockstep/tensor/memory/storage_supplier_internal.h"
#include "tests/support/testing.h"

// Keeps values apart from the storage. Each call of supply() puts them into another block.
class Supplier : public ls::StorageSupplier {
 public:
  explicit Supplier(const ls::Tensor& values) : values(values.clone()) {}

  void need(ls::Storage& storage) override {
    ++requests;
    requester = std::this_thread::get_id();
    if (refuses) throw ls::InvalidArgument("unit \"blocks.0\": its parameters are released; compute inside gathered()");
    if (!forgets) supply(storage);
  }
  void supply(ls::Storage& storage) {
    blocks.push_back(values.clone());
    storage.supply(blocks.back().raw_data());
  }
  // Takes the elements out of the storage. Its former memory holds other bytes from now on.
  void release(ls::Storage& storage) {
    values.copy_(blocks.back());
    storage.release();
    blocks.back().fill_(kNan);
  }

  bool refuses = false, forgets = false;
  int requests = 0;
  std::thread::id requester;  // the thread of the last request
  ls::Tensor values;
  std::vector<ls::Tensor> blocks;
};

// A tensor on a releasable storage, which has its memory at first.
struct Moving {
  explicit Moving(const ls::Tensor& values) : supplier(std::make_shared<Supplier>(values)) {
    const auto bytes = static_cast<std::size_t>(values.numel()) * ls::item_size(values.dtype());
    storage = ls::Storage::releasable(bytes, values.device(), supplier);
    tensor = ls::Tensor(
        ls::Ref<ls::TensorImpl>::adopt(new ls::TensorImpl(storage, values.shape(), values.numel(), values.dtype())));
    supplier->supply(*storage);
  }
  void release() const { supplier->release(*storage); }
  void move() const {
    const void* const before = storage->data();
    release();
    supplier->supply(*storage);
    REQUIRE(storage->data() != before);
  }

  std::shared_ptr<Supplier> supplier;
  ls::Ref<ls::Storage> storage;
  ls::Tensor tensor;
};
