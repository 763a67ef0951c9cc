// Releasable storages: tensors on them find the elements wherever the supplier puts them, and ask for released memory.
#include <functional>

#include "lockstep/tensor/ops/ops_internal.h"
#include "tests/support/moving_storage.h"

namespace {

ls::Tensor sequence(const ls::Shape& shape) { return ls::sin(ls::arange(shape.numel())).reshape(shape); }

}  // namespace

TEST_CASE("views find the elements after their storage has moved") {
  const ls::Tensor values = sequence({4, 6});
  const Moving moving(values);
  const ls::Tensor row = moving.tensor[2], columns = moving.tensor.t(), part = columns.slice(0, 1, 6, 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(same_bits(moving.tensor, values));
    CHECK(same_bits(row, values[2]));
    CHECK(same_bits(columns, values.t()));
    CHECK(same_bits(part, values.t().slice(0, 1, 6, 2)));
    moving.move();
  }
  part.fill_(7);
  moving.move();
  CHECK(moving.tensor[3][5].item<float>() == 7);
  CHECK(moving.tensor[3][4].item<float>() == values[3][4].item<float>());
}

TEST_CASE("backward finds saved tensors after their storage has moved") {
  const ls::Tensor x = sequence({5, 8});
  // The loss saves views of the parameters at an offset, an expanded one and a transposed one.
  const auto gradients = [&](const ls::Tensor& flat, auto between) {
    const ls::Tensor weight = ls::raw::as_strided(flat, {6, 8}, {8, 1}, 16).requires_grad_();
    const ls::Tensor scale = ls::raw::as_strided(flat, {6}, {1}, 0).requires_grad_();
    const ls::Tensor loss =
        (ls::matmul(x, weight.t()) * scale * scale.exp()).tanh().sum() + (weight[1] * weight[2]).sum();
    between();
    loss.backward();
    return std::pair(weight.grad(), scale.grad());
  };
  const ls::Tensor values = sequence({64});
  const auto expected = gradients(values, [] {});
  const Moving moving(values);
  const std::uint32_t version = moving.storage->version();
  const auto moved = gradients(moving.tensor, [&] { moving.move(); });
  const auto gathered = gradients(moving.tensor, [&] { moving.release(); });  // backward itself asks for the memory
  CHECK(moving.supplier->requests == 1);
  CHECK(moving.storage->version() == version);
  for (const auto& actual : {moved, gathered}) {
    CHECK(same_bits(actual.first, expected.first));
    CHECK(same_bits(actual.second, expected.second));
  }
}

TEST_CASE("an in-place change is still detected after the storage has moved") {
  const Moving moving(sequence({4}));
  const ls::Tensor x = ls::raw::alias(moving.tensor).requires_grad_();
  const ls::Tensor loss = (x * x).sum();
  moving.move();
  moving.tensor.mul_(2);
  CHECK(contains(error_of([&] { loss.backward(); }), "changed"));
}

TEST_CASE("every access to released memory throws the supplier's error") {
  const Moving moving(sequence({4, 6}));
  const ls::Tensor &x = moving.tensor, other = ls::ones({4, 6}), first = x[0][0];
  moving.release();
  moving.supplier->refuses = true;
  const std::vector<std::function<void()>> accesses = {
      [&] { x.data<float>(); },
      [&] { x.span<float>(); },
      [&] { x.to_vector<float>(); },
      [&] { x.to_string(); },
      [&] { first.item<float>(); },
      [&] { x.clone(); },
      [&] { x.to(ls::kInt64); },
      [&] { x.to("cpu:1"); },
      [&] { x.t().contiguous(); },
      [&] { other + x; },
      [&] { x.sum(); },
      [&] { x.matmul(other.t()); },
      [&] { x.exp(); },
      [&] { x.softmax(1); },
      [&] { other.copy_(x); },
      [&] { x.copy_(other); },
      [&] { x.zero_(); },
      [&] { x.add_(other); },
      [&] { other.add_(x); },
      [&] { x.index_select(0, ls::arange(2)); },
  };
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    CAPTURE(i);
    CHECK(contains(error_of(accesses[i]), "compute inside gathered()"));
  }
  CHECK(moving.supplier->requests == static_cast<int>(accesses.size()));
  CHECK(!moving.storage->is_present());
}

TEST_CASE("geometry needs no memory") {
  const Moving moving(sequence({4, 6}));
  moving.release();
  moving.supplier->refuses = true;
  const ls::Tensor view = moving.tensor.t().slice(0, 1, 5).unsqueeze(0).detach();
  CHECK(view.shape() == ls::Shape{1, 4, 4});
  CHECK(view.device() == ls::Device());
  CHECK(ls::raw::overlap(view, moving.tensor));
  CHECK(!ls::raw::overlap(moving.tensor[0], moving.tensor[1]));
  CHECK(moving.supplier->requests == 0);
}

TEST_CASE("an operation continues with the memory that the supplier gives it") {
  const ls::Tensor values = sequence({6});
  const Moving moving(values);
  moving.release();
  CHECK(same_bits(moving.tensor * moving.tensor + moving.tensor[1], values * values + values[1]));
  CHECK(moving.supplier->requests == 1);
  CHECK(moving.storage->is_present());
  moving.release();
  moving.supplier->forgets = true;
  CHECK(contains(error_of([&] { moving.tensor.exp(); }), "supplied no memory"));
}

TEST_CASE("the supplier is not asked for a storage without elements") {
  const Moving moving(ls::empty({0, 3}));
  moving.storage->release();
  moving.supplier->refuses = true;
  CHECK(moving.tensor.sum().item<float>() == 0);
  CHECK((moving.tensor + 1).numel() == 0);
  CHECK(moving.supplier->requests == 0);
}

TEST_CASE("memory of a releasable storage counts as its owner's") {
  const auto supplier = std::make_shared<Supplier>(ls::zeros({1}));
  const ls::Tensor memory = ls::zeros({1 << 16});
  const ls::AllocatorStats before = ls::allocator_stats();
  {
    const auto storage = ls::Storage::releasable(std::size_t{1} << 18, ls::Device(), supplier);
    storage->supply(memory.raw_data());
    CHECK(supplier.use_count() == 2);
    CHECK(ls::allocator_stats().allocated_bytes == before.allocated_bytes);
  }
  CHECK(supplier.use_count() == 1);
  CHECK(ls::allocator_stats().allocated_bytes == before.allocated_bytes);
  CHECK(ls::allocator_stats().allocations == before.allocations);
}

TEST_CASE("supply and release need a releasable storage and aligned memory") {
  const ls::Tensor owned = ls::zeros({64});
  CHECK(contains(error_of([&] { owned.impl().storage->release(); }), "release: "));
  CHECK(contains(error_of([&] { owned.impl().storage->supply(owned.raw_data()); }), "supply: "));
  CHECK(contains(error_of([] { ls::Storage::releasable(4, ls::Device(), nullptr); }), "supplier"));
  const Moving moving(owned);
  CHECK(contains(error_of([&] { moving.storage->supply(owned.data<float>() + 1); }), "multiple of 64"));
  CHECK(contains(error_of([&] { moving.storage->supply(nullptr); }), "multiple of 64"));
}
