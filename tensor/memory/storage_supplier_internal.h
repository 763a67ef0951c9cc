// Memory on demand: a storage whose memory is released and supplied again, perhaps at another address, while tensors on
// it, their views and autograd's saved tensors stay valid. Sharded training gathers a unit's parameters this way. Not
// installed.
#pragma once

#include "lockstep/tensor/memory/storage.h"

namespace lockstep {

// Supplies the memory of storages made by Storage::releasable, which share ownership of it. It must not own them.
class StorageSupplier {
 public:
  StorageSupplier() = default;
  StorageSupplier(const StorageSupplier&) = delete;
  StorageSupplier& operator=(const StorageSupplier&) = delete;
  virtual ~StorageSupplier() = default;

  // An operation needs the elements of `storage`, which has no memory. Either calls storage.supply() with memory that
  // holds the elements, and the operation continues; or throws an error that says what the caller must do. Runs on the
  // thread that called the operation, never on one of the pool. Must not release memory of other storages, because the
  // operation may hold their addresses.
  virtual void need(Storage& storage) = 0;
};

}  // namespace lockstep
