#include "lockstep/parallel/sharded/unit_parameters_internal.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/trace.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/replace_elements_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/typed_memory_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// Copies this rank's elements of a parameter, whose tensor still has its own values, to flat.master.
void take_values(const FlatParameters& flat, std::size_t k, const Tensor& values, int rank, int ranks) {
  const std::int64_t offset = flat.layout.offsets[k];
  const TensorPart part = part_in_shard(values.shape(), offset, flat.layout.elements / ranks, rank);
  if (part.numel == 0) return;
  const Tensor to = elements_in_shard(flat.master, offset, part, rank);
  raw::copy(nn::is_deferred(values)
                ? nn::initial_values(values, part, to.device())
                : elements_of(raw::reshape(values.detach(), {values.numel()}), part.begin, part.numel),
            to);
}

}  // namespace

Tensor elements_of(const Tensor& flat, std::int64_t first, std::int64_t count) {
  return raw::slice(flat, 0, first, first + count, 1);
}

Tensor elements_in_shard(const Tensor& shard, std::int64_t offset, const TensorPart& part, int rank) {
  return elements_of(shard, part.numel == 0 ? 0 : offset + part.begin - shard.numel() * rank, part.numel);
}

UnitParameters::UnitParameters(const UnitLayout& layout, std::uint64_t number, const optim::NamedParameters& parameters,
                               ProcessGroup& group, bool resident, const std::shared_ptr<StorageSupplier>& supplier)
    : number_(number), path_(layout.name), name_(layout.text()), resident_(resident) {
  for (const FlatLayout& plan : layout.flats) make_flat(plan, parameters, group, supplier);
}

void UnitParameters::make_flat(const FlatLayout& plan, const optim::NamedParameters& parameters, ProcessGroup& group,
                               const std::shared_ptr<StorageSupplier>& supplier) {
  FlatParameters& flat = flats_.emplace_back(FlatParameters{.layout = plan});
  const std::int64_t each = plan.elements / group.size();
  if (resident_) {
    flat.whole = group.empty({plan.elements}, plan.dtype, plan.device);
    flat.shard = elements_of(flat.whole, each * group.rank(), each);
  } else {
    flat.shard = group.empty({each}, plan.dtype, plan.device);
  }
  // All blocks of communication memory have the same layout, but a rank's shard is at another place in a resident one.
  const Tensor shared = resident_ ? flat.whole : flat.shard;
  for (const Tensor& view : group.views_of_all(shared)) {
    const auto r = static_cast<std::int64_t>(flat.shards.size());
    flat.shards.push_back(resident_ ? elements_of(view, each * r, each) : view);
  }
  const bool is_mixed = plan.master != plan.dtype;
  flat.master = is_mixed ? raw::empty({each}, {.dtype = plan.master, .device = plan.device}) : flat.shard;
  raw::fill(flat.master, 0);  // the gaps are gathered as well
  flat.storage = Storage::releasable(static_cast<std::size_t>(plan.bytes()), plan.device, supplier);
  for (std::size_t k = 0; k < plan.parameters.size(); ++k) {
    const Tensor& tensor = parameters[plan.parameters[k]].second.master();
    take_values(flat, k, tensor, group.rank(), group.size());
    const auto offset = plan.offsets[k] * static_cast<std::int64_t>(item_size(plan.dtype));
    nn::replace_elements(
        tensor, Tensor(Ref<TensorImpl>::adopt(new TensorImpl(flat.storage, offset, tensor.shape(),
                                                             contiguous_strides(tensor.shape()), plan.dtype))));
  }
  if (is_mixed) raw::copy(flat.master, flat.shard);
}

bool UnitParameters::owns(const Storage& storage) const {
  return std::ranges::any_of(flats_, [&](const FlatParameters& flat) { return flat.storage.get() == &storage; });
}

bool UnitParameters::reads_directly() const {
  return std::ranges::none_of(flats_, [](const FlatParameters& flat) { return flat.shards.empty(); });
}

std::int64_t UnitParameters::whole_bytes() const {
  std::int64_t bytes = 0;
  for (const FlatParameters& flat : flats_) bytes += flat.layout.bytes();
  return bytes;
}

void UnitParameters::launch(ProcessGroup& group, const Tensor& memory) {
  const TraceTime begin = TraceTime::now();
  std::int64_t at = 0, copied = 0;
  for (FlatParameters& flat : flats_) {
    if (!resident_) flat.whole = typed_view(memory, at, flat.layout.elements, flat.layout.dtype);
    at += flat.layout.bytes();
    if (!resident_ || flat.layout.trained || !has_frozen_) copied += gather(flat, group);
  }
  has_frozen_ = true;
  if (copied > 0)
    trace_event(TraceKind::kCopy, name_, begin,
                {.bytes = copied,
                 .from = group.global_rank(group.rank()),
                 .id = static_cast<std::int64_t>(number_),
                 .phase = static_cast<int>(Phase::kParameters)});
  if (!flats_.empty()) trace_memory(flats_.front().layout.device);
}

// Returns the bytes that are recorded as sent if the gather is a copy; 0 if it is a collective.
std::int64_t UnitParameters::gather(const FlatParameters& flat, ProcessGroup& group) {
  if (flat.shards.empty()) {
    works_.push_back(group.all_gather(
        flat.whole, flat.shard, {.phase = Phase::kParameters, .name = name_, .id = number_, .same_values = true}));
    return 0;
  }
  const std::int64_t each = flat.shard.numel();
  for (int r = 0; r < group.size(); ++r) {
    const Tensor& from = flat.shards[static_cast<std::size_t>(r)];
    const Tensor to = elements_of(flat.whole, each * r, each);
    if (to.raw_data() != from.raw_data()) raw::copy(from, to);
    if (r != group.rank())
      group.traffic().add(group.global_rank(group.rank()), group.global_rank(r), Phase::kParameters, bytes_of(from));
  }
  return (group.size() - 1) * bytes_of(flat.shard);
}

void UnitParameters::present() {
  if (present_) return;
  for (const auto& work : works_) work->wait();
  works_.clear();
  for (const FlatParameters& flat : flats_) flat.storage->supply(flat.whole.raw_data());
  present_ = true;
}

void UnitParameters::hide() {
  for (FlatParameters& flat : flats_) {
    flat.storage->release();
    if (!resident_) flat.whole = Tensor();
  }
  present_ = false;
}

void UnitParameters::release() {
  hide();
  for (const auto& work : works_) work->wait();
  works_.clear();
}

void UnitParameters::gather_apart(ProcessGroup& group) {
  if (flats_.empty()) return;
  const Device device = flats_.front().layout.device;
  launch(group, resident_ ? Tensor() : raw::empty({whole_bytes()}, {.dtype = kUInt8, .device = device}));
  present();
}

void UnitParameters::mark_changed() {
  for (const FlatParameters& flat : flats_) flat.storage->bump_version();
}

std::uint64_t UnitParameters::version() const {
  std::uint64_t sum = 0;
  for (const FlatParameters& flat : flats_) sum += flat.storage->version();
  return sum;
}

}  // namespace lockstep::parallel
