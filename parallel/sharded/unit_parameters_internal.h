// The parameters of one unit: shards in the group's communication memory, and the whole parameters while they are
// gathered.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/sharded/unit_plan_internal.h"
#include "lockstep/tensor/memory/storage_supplier_internal.h"

namespace lockstep::parallel {

// One flat buffer of a unit.
struct FlatParameters {
  FlatLayout layout;
  Tensor shard = {};                // this rank's elements, in communication memory: part rank() of `whole` if resident
  Tensor master = {};               // the same elements as the optimizer steps them: `shard` itself, or a tensor of
                                    // another dtype or on the host
  std::vector<Tensor> shards = {};  // all ranks' shards, where ranks can read each other's memory; else empty
  Tensor whole = {};                // all elements; undefined while released, unless resident
  Ref<Storage> storage = {};        // that of the module's parameters: present while they may be read
};

class UnitParameters {
 public:
  // Moves the parameters to the storages of flat buffers, where they have no values yet, and their values to the
  // shards. `resident`: the whole parameters stay in memory; else they are gathered into memory given to `launch`. All
  // ranks must construct their units in the same order.
  UnitParameters(const UnitLayout& layout, std::uint64_t number, const optim::NamedParameters& parameters,
                 ProcessGroup& group, bool resident, const std::shared_ptr<StorageSupplier>& supplier);
  UnitParameters(UnitParameters&&) = default;

  const std::string& name() const { return name_; }  // "unit blocks.1", for errors
  std::vector<FlatParameters>& flats() { return flats_; }
  const std::vector<FlatParameters>& flats() const { return flats_; }
  bool owns(const Storage& storage) const;
  bool contains(const UnitParameters& unit) const { return unit.path_.starts_with(path_ + "."); }  // as modules do
  bool is_resident() const { return resident_; }
  // Whether `launch` reads the other ranks' memory, and so needs no other rank to do the same.
  bool reads_directly() const;
  // Bytes of the memory that `launch` needs.
  std::int64_t whole_bytes() const;

  // Starts to gather the whole parameters: into `memory` (u8, of at least whole_bytes), which is ignored by a resident
  // unit. A resident unit's frozen parameters never change and are gathered once.
  void launch(ProcessGroup& group, const Tensor& memory);
  // Waits for the gather and makes the module's parameters readable.
  void present();
  bool is_present() const { return present_; }
  // Makes the module's parameters unreadable.
  void hide();
  // The same, and waits for a gather in flight, so that its memory can be used again.
  void release();
  // Gathers into memory of its own, for reading outside a step.
  void gather_apart(ProcessGroup& group);

  // Notes that the values have changed: autograd's saved tensors of earlier steps become invalid.
  void mark_changed();
  void mark_frozen_changed() { has_frozen_ = false; }  // those of a resident unit are gathered again
  // Whether operations have changed the parameters since note_version.
  void note_version() { noted_ = version(); }
  bool has_new_version() const { return version() != noted_; }

 private:
  void make_flat(const FlatLayout& plan, const optim::NamedParameters& parameters, ProcessGroup& group,
                 const std::shared_ptr<StorageSupplier>& supplier);
  std::int64_t gather(const FlatParameters& flat, ProcessGroup& group);
  std::uint64_t version() const;

  std::uint64_t number_;
  std::string path_, name_;
  std::vector<FlatParameters> flats_;
  std::vector<std::shared_ptr<Work>> works_;  // of the gather in flight
  std::uint64_t noted_ = 0;                   // a version
  bool resident_;
  bool present_ = false;
  bool has_frozen_ = false;  // the frozen parameters of a resident unit have been gathered
};

// Elements [first, first + count) of a contiguous tensor of one dimension.
Tensor elements_of(const Tensor& flat, std::int64_t first, std::int64_t count);
// The elements of `part`, which part_in_shard has returned for `offset` and this rank, in the rank's shard.
Tensor elements_in_shard(const Tensor& shard, std::int64_t offset, const TensorPart& part, int rank);

}  // namespace lockstep::parallel
