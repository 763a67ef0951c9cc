// The link from a module's parameters to their ShardedDataParallel, which may be destroyed before the module.
#pragma once

#include "lockstep/parallel/sharded/sharded.h"
#include "lockstep/tensor/memory/storage_supplier_internal.h"

namespace lockstep::parallel {

class ShardedAccessSupplier final : public StorageSupplier {
 public:
  explicit ShardedAccessSupplier(ShardedDataParallel::State* state) : state(state) {}
  void need(Storage& storage) override;
  ShardedDataParallel::State* state;  // null once it is destroyed
};

}  // namespace lockstep::parallel
