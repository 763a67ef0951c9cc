// Tensors to and from other libraries: what they share, who ends it, and descriptions that no tensor can have.
#include <lockstep/interop/dlpack.h>

#include <functional>
#include <limits>

#include "tests/support/testing.h"

namespace {

// A producer's tensor: it counts how often it is ended.
struct Producer {
  std::vector<float> elements = std::vector<float>(24, 1);
  std::vector<std::int64_t> shape = {2, 3}, strides = {};
  DLManagedTensor managed = {};
  int ended = 0;

  Producer() {
    managed.dl_tensor = {.data = elements.data(),
                         .device = {kDLCPU, 0},
                         .ndim = 2,
                         .dtype = {kDLFloat, 32, 1},
                         .shape = shape.data(),
                         .strides = nullptr,
                         .byte_offset = 0};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) { ++static_cast<Producer*>(self->manager_ctx)->ended; };
  }
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
};

// The error of a description that `change` makes, which must end the tensor all the same.
std::string error_for(const std::function<void(DLTensor&)>& change) {
  Producer producer;
  producer.strides = {3, 1};
  change(producer.managed.dl_tensor);
  const std::string error = error_of<ls::InvalidArgument>([&] { ls::from_dlpack(&producer.managed); });
  CHECK(producer.ended == 1);
  return error;
}

}  // namespace

TEST_CASE("to_dlpack and back: every dtype and layout, the same memory") {
  for (int i = 0; i < ls::kDTypeCount; ++i) {
    const ls::Tensor x = ls::arange(12, {.dtype = ls::kFloat32}).to(static_cast<ls::DType>(i)).view({3, 4});
    for (const ls::Tensor& view : {x, x.t(), x.slice(0, 1, 3), x.slice(1, 1, 4, 2), x[1].expand({2, 4}), x[2][1]}) {
      const ls::Tensor back = ls::from_dlpack(ls::to_dlpack(view));
      CHECK(back.dtype() == view.dtype());
      CHECK(back.shape() == view.shape());
      CHECK(back.strides() == view.strides());
      CHECK(back.raw_data() == view.raw_data());
      CHECK(ls::equal(back, view));
    }
  }
  const ls::Tensor empty = ls::zeros({0, 3});
  CHECK(ls::from_dlpack(ls::to_dlpack(empty)).shape() == ls::Shape{0, 3});
}

TEST_CASE("to_dlpack: the memory lives until the consumer ends it") {
  ls::DlpackTensor managed;
  {
    const ls::Tensor x = ls::full({1000}, 7.0);
    managed = ls::to_dlpack(x);
  }
  const ls::Tensor other = ls::full({1000}, 8.0);  // would take freed memory
  CHECK(static_cast<const float*>(managed->dl_tensor.data)[999] == 7);
  const ls::Tensor weight = ls::zeros({2}).requires_grad_();
  CHECK(contains(error_of<ls::InvalidArgument>([&] { ls::to_dlpack(weight); }), "pass t.detach()"));
  CHECK(ls::to_dlpack(weight.detach())->dl_tensor.data == weight.raw_data());
  CHECK(contains(error_of<ls::InvalidArgument>([&] { ls::to_dlpack(ls::Tensor()); }), "undefined"));
}

TEST_CASE("from_dlpack: shares the producer's memory, and ends it once, with the last tensor") {
  Producer producer;
  {
    const ls::Tensor x = ls::from_dlpack(&producer.managed);
    CHECK(x.shape() == ls::Shape{2, 3});
    CHECK(x.is_contiguous());
    producer.elements[4] = 5;
    CHECK(x[1][1].item<float>() == 5);
    x.mul_(2);
    CHECK(producer.elements[4] == 10);
    const ls::Tensor row = x[0];
    CHECK(producer.ended == 0);
  }
  CHECK(producer.ended == 1);
}

TEST_CASE("from_dlpack: strides, an offset in bytes, training on the memory, a producer without a deleter") {
  Producer producer;
  producer.strides = {1, 2};
  producer.managed.dl_tensor.strides = producer.strides.data();
  producer.managed.dl_tensor.byte_offset = 4;
  producer.managed.deleter = nullptr;
  for (std::size_t i = 0; i < 24; ++i) producer.elements[i] = static_cast<float>(i);
  const ls::Tensor x = ls::from_dlpack(&producer.managed);
  CHECK(x.to_vector<float>() == std::vector<float>{1, 3, 5, 2, 4, 6});
  ls::Tensor leaf = x.requires_grad_();
  (leaf * leaf).sum().backward();
  CHECK(leaf.grad().to_vector<float>() == std::vector<float>{2, 6, 10, 4, 8, 12});
}

TEST_CASE("from_dlpack: a description that no tensor can have is an error") {
  static std::int64_t negative[] = {-3, 1}, huge[] = {std::int64_t{1} << 62, 1}, minus[] = {-1, 3},
                      large[] = {std::int64_t{1} << 40, std::int64_t{1} << 40}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  CHECK(contains(error_of<ls::InvalidArgument>([] { ls::from_dlpack(ls::DlpackTensor()); }), "the pointer is null"));
  CHECK(contains(error_for([](DLTensor& t) { t.dtype.lanes = 4; }), "type code 2, 32 bits and 4 lanes"));
  CHECK(contains(error_for([](DLTensor& t) { t.dtype = {kDLComplex, 64, 1}; }), "expected bool, u8"));
  CHECK(contains(error_for([](DLTensor& t) { t.dtype = {kDLInt, 8, 1}; }), "type code 0, 8 bits"));
  CHECK(
      contains(error_for([](DLTensor& t) { t.device.device_type = kDLVulkan; }), "device of type 7; expected the CPU"));
  CHECK(contains(error_for([](DLTensor& t) { t.ndim = -1; }), "-1 dimensions; expected 0 to 8"));
  CHECK(contains(error_for([](DLTensor& t) { t.ndim = 9, t.shape = nine; }), "9 dimensions"));
  CHECK(contains(error_for([](DLTensor& t) { t.shape = minus; }), "a negative size"));
  CHECK(contains(error_for([](DLTensor& t) { t.shape = large, t.strides = nullptr; }), "from_dlpack: shape"));
  CHECK(contains(error_for([](DLTensor& t) { t.strides = negative; }), "stride -3 of dimension 0 is negative"));
  CHECK(contains(error_for([](DLTensor& t) { t.strides = huge; }), "lead beyond any memory"));
  CHECK(contains(error_for([](DLTensor& t) { t.data = nullptr; }), "shape (2, 3) without data"));
  CHECK(contains(error_for([](DLTensor& t) { t.byte_offset = 2; }), "no multiple of that; copy the tensor first"));
}
