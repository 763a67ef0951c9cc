#include "lockstep/parallel/comm/staging_internal.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/comm/backend_internal.h"
#include "lockstep/tensor/memory/accelerator_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::size_t kPinnedPage = 4096;  // each block is pinned alone, so no two share a page

// Pins host memory until the result is destroyed; null if that is not possible.
std::shared_ptr<void> pin(void* data, std::size_t bytes, Device gpu) {
  Accelerator& owner = accelerator(gpu);
  if (bytes == 0 || !owner.pin_host(data, bytes)) return nullptr;
  return {data, [&owner](void* pinned) { owner.unpin_host(pinned); }};
}

struct HostBlock {
  HostBlock(std::size_t bytes, Device gpu) : data(std::aligned_alloc(kPinnedPage, bytes), std::free) {
    if (!data) throw DeviceError(fmt::format("cpu: out of memory: {} bytes asked for", bytes));
    pinned = pin(data.get(), bytes, gpu);
  }
  std::unique_ptr<void, void (*)(void*)> data;
  std::shared_ptr<void> pinned;  // destroyed first
};

}  // namespace

struct Staging::Pair {
  Ref<Storage> here, there;
  std::shared_ptr<void> pinned;  // destroyed first
};

Ref<Storage> Staging::mirror(Ref<Storage> there, Device device) {
  const auto pair = std::make_shared<Pair>();
  pair->here = Storage::allocate(there->bytes(), device);
  if (there->device().is_cpu()) pair->pinned = pin(there->data(), there->bytes(), device);
  pair->there = std::move(there);
  std::erase_if(pairs_, [](const auto& old) { return old.expired(); });
  pairs_.push_back(pair);
  return Storage::wrap(pair->here->data(), pair->here->bytes(), device, pair);
}

Tensor Staging::place_for(const Tensor& tensor, Device device) {
  const auto* const data = static_cast<const std::byte*>(tensor.raw_data());
  const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * item_size(tensor.dtype());
  for (const auto& each : pairs_) {
    const auto pair = each.lock();
    if (!pair || pair->there->device() != device || pair->here->device() != tensor.device()) continue;
    const auto* const from = static_cast<const std::byte*>(pair->here->data());
    if (data < from || data + bytes > from + pair->here->bytes()) continue;
    return Tensor(Ref<TensorImpl>::adopt(
        new TensorImpl(pair->there, data - from, tensor.shape(), tensor.strides(), tensor.dtype())));
  }
  if (!device.is_cpu()) return raw::empty(tensor.shape(), {.dtype = tensor.dtype(), .device = device});
  return Tensor(Ref<TensorImpl>::adopt(
      new TensorImpl(block(bytes, tensor.device()), tensor.shape(), tensor.numel(), tensor.dtype())));
}

Ref<Storage> Staging::block(std::size_t bytes, Device gpu) {
  const std::size_t step =
      std::max(std::bit_ceil(bytes) / 8, kPinnedPage);  // so that a block fits tensors of similar sizes
  const std::size_t size = std::max((bytes + step - 1) / step, std::size_t{1}) * step;
  for (const Ref<Storage>& each : blocks_) {
    if (each->bytes() == size && each->use_count() == 1) return each;
  }
  const auto made = std::make_shared<HostBlock>(size, gpu);
  return blocks_.emplace_back(Storage::wrap(made->data.get(), size, Device(), made));
}

// Starts an operation on another device: copies its input there first, and its result back at the end.
std::shared_ptr<Work> ProcessGroup::start_staged(Call call, Device on) {
  const auto copy = [traffic = traffic_, rank = place_.global_rank(rank()), phase = call.phase](const Tensor& from,
                                                                                                const Tensor& to) {
    raw::copy(from, to);
    const bool from_host = from.device().is_cpu();
    if (from_host == to.device().is_cpu()) return;
    const int gpu = -1 - rank;
    traffic->add(from_host ? rank : gpu, from_host ? gpu : rank, phase,
                 to.numel() * static_cast<std::int64_t>(item_size(to.dtype())));
  };
  const Tensor in = call.in, out = call.out;
  const bool sends = call.sends(rank());
  const bool receives = out.defined() && (call.kind != Kind::kBroadcast || !sends);
  const bool in_place = in.defined() && out.defined() && in.raw_data() == out.raw_data() && in.numel() == out.numel();
  if (in.defined()) call.in = staging_->place_for(in, on);
  if (out.defined()) call.out = in_place ? call.in : staging_->place_for(out, on);
  if (in.defined() && sends) copy(in, call.in);
  const Tensor result = call.out;
  std::shared_ptr<Work> work = backend_->start(std::move(call));
  return receives ? keep(then(std::move(work), [copy, result, out] { copy(result, out); })) : work;
}

}  // namespace lockstep::parallel
