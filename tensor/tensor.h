// Tensor: a cheap handle on shared storage, with a shape, strides, a dtype and a device.
//
// Copying a Tensor copies the handle; views (`transpose`, `slice`, `t[i]`, ...) share the storage; `clone` copies the
// elements. Members that change elements end in `_`, are const (the handle does not change), and throw InvalidArgument
// on a tensor that requires grad while grad mode is on. Every operation is a free function (autograd/functions.h); the
// common ones are members too. One thread at a time may change a tensor; any number may read it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/tensor/callback.h"
#include "lockstep/tensor/device.h"
#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/ref.h"
#include "lockstep/tensor/scalar.h"
#include "lockstep/tensor/shape.h"
#include "lockstep/tensor/small_blocks.h"
#include "lockstep/tensor/storage.h"

namespace lockstep {

class Tensor;

// What autograd keeps with a tensor: history or gradient. tensor/ owns it and does not look inside.
struct AutogradSlot : SmallObject {
  virtual ~AutogradSlot() = default;
};

// How to create a tensor. A member that is not set means the function's own default: f32 for most functions and i64
// for integers, on the cpu; `zeros_like` and `ones_like` take dtype and device from their tensor.
struct TensorOptions {
  std::optional<DType> dtype = std::nullopt;    // of the elements
  std::optional<Device> device = std::nullopt;  // where it lives
  bool requires_grad = false;                   // a leaf that backward gives a gradient
};

// How `var` and `std` reduce.
struct VarOptions {
  std::int64_t correction = 1;  // subtracted from the number of elements in the divisor; 0: the biased variance
  bool keepdim = false;         // leave the reduced dimensions with size 1
};

// How to run backward from a tensor.
struct BackwardOptions {
  bool retain_graph = false;  // keep what the graph saved, to run it again
  bool create_graph = false;  // record backward itself, for second derivatives (implies retain_graph)
};

// Removes a hook. It may outlive the tensor; dropping it leaves the hook in place.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(Callback<void()> remove) : remove_(std::move(remove)) {}
  // Takes the hook away. Doing it twice is fine.
  void remove() {
    if (remove_) std::exchange(remove_, {})();
  }

 private:
  Callback<void()> remove_;
};

// The state behind a handle. Geometry never changes after construction.
struct TensorImpl final : RefCounted<TensorImpl>, SmallObject {
  // `first`: the address of the first element, inside the storage.
  TensorImpl(Ref<Storage> storage, std::byte* first, const Shape& shape, const Strides& strides, DType dtype);
  // Row-major from the start of the storage; `numel` is the product of the sizes.
  TensorImpl(Ref<Storage> storage, const Shape& shape, std::int64_t numel, DType dtype);
  // The same elements, without what autograd keeps.
  explicit TensorImpl(const TensorImpl& other);
  static void destroy(const TensorImpl* impl) { delete impl; }

  Ref<Storage> storage;
  std::byte* data;  // of the first element
  std::int64_t numel;
  Shape shape;
  Strides strides;  // in elements
  DType dtype;
  bool contiguous;  // row-major without gaps
  std::unique_ptr<AutogradSlot> autograd;
};

// A handle on elements, as the head of this file describes it. Copies refer to the same elements.
class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false, and using it in an operation is an error
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  // Assignment to a variable makes it refer to the elements of `other`.
  Tensor& operator=(const Tensor& other) & = default;
  Tensor& operator=(Tensor&& other) & noexcept = default;
  // Assignment to a temporary, as in x[0] = y and x[0] = 5, changes its elements: copy_ and fill_.
  Tensor& operator=(const Tensor& other) &&;
  Tensor& operator=(const Scalar& value) &&;
  ~Tensor() = default;

  // --- asking -------------------------------------------------------------------------------------------------------
  bool defined() const { return static_cast<bool>(impl_); }   // false for Tensor()
  const Shape& shape() const { return impl().shape; }         // the sizes of its dimensions
  const Strides& strides() const { return impl().strides; }   // in elements, one for each dimension
  std::int64_t size(std::int64_t dim) const;                  // of one dimension; negative ones count from the end
  std::int64_t stride(std::int64_t dim) const;                // in elements
  int dim() const { return impl().shape.dim(); }              // number of dimensions
  std::int64_t numel() const { return impl().numel; }         // number of elements
  DType dtype() const { return impl().dtype; }                // of the elements
  Device device() const { return impl().storage->device(); }  // where they live
  // Dtype and device, to make another one like it.
  TensorOptions options() const { return {.dtype = dtype(), .device = device()}; }
  bool is_contiguous() const { return impl().contiguous; }                         // row-major, without gaps
  bool is_floating_point() const { return lockstep::is_floating_point(dtype()); }  // f16, bf16, f32 or f64

  // The only element, converted. Throws InvalidArgument unless numel() is 1.
  template <class T>
  T item() const {
    const Scalar value = item();
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(value.to_double());
    else if constexpr (std::is_same_v<T, bool>)
      return value.to_double() != 0;
    else
      return static_cast<T>(value.to_int64());
  }
  Scalar item() const;

  // Address of the first element. Throws InvalidArgument where T is not the tensor's dtype.
  template <class T>
  T* data() const {
    return static_cast<T*>(checked_data(dtype_of<T>));
  }
  // The elements in order. Throws InvalidArgument where T is not the dtype, or the tensor is not contiguous or not on the CPU.
  template <class T>
  std::span<T> span() const {
    return {static_cast<T*>(checked_span(dtype_of<T>)), static_cast<std::size_t>(numel())};
  }
  // A copy of the elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const {
    const Tensor dense = host_copy(dtype_of<T>);
    const T* first = static_cast<const T*>(dense.raw_data());
    return std::vector<T>(first, first + numel());
  }
  // PyTorch's way of printing: "tensor([[1., 2.]])".
  std::string to_string() const;

  // --- views: they share storage, and gradients flow through them -----------------------------------------------------
  // One size may be -1. `view` throws where the elements would have to move; `reshape` copies then.
  Tensor view(const Shape& shape) const;
  Tensor reshape(const Shape& shape) const;                        // as view, or a copy
  Tensor transpose(std::int64_t dim_a, std::int64_t dim_b) const;  // these dimensions change places
  Tensor permute(const Shape& dims) const;                         // dimension i is the one that was dims[i]
  Tensor t() const;                                                // 2-D: transpose(0, 1); 0-D and 1-D: itself
  Tensor squeeze() const;                                          // without dimensions of size 1
  Tensor squeeze(std::int64_t dim) const;                          // without this one, where its size is 1
  Tensor unsqueeze(std::int64_t dim) const;                        // with a new dimension of size 1 before `dim`
  // Sizes of 1 are repeated without copying; -1 keeps a size; new dimensions come in front.
  Tensor expand(const Shape& shape) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;  // one position of `dim`, which goes
  // Elements start, start + step, ... below end along `dim`; negative positions count from the end, as in Python.
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step = 1) const;
  // `length` positions from `start` on.
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
  // Joins these dimensions into one; a copy where they do not lie together.
  Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;
  Tensor operator[](std::int64_t index) const;  // select(0, index)

  // --- moving: the tensor itself where nothing changes, otherwise a copy ------------------------------------------------
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor to(const char* device) const { return to(Device(device)); }
  Tensor contiguous() const;
  Tensor clone() const;   // always a copy, contiguous
  Tensor detach() const;  // shares storage, without history

  // --- in place: they change the elements and return the tensor; add_ is +=, and so on -----------------------------------
  // Changes are not recorded: while grad mode is on, a tensor or an operand that requires grad is an error. The dtype
  // stays. A result of a higher category (bool, integers, floats) throws InvalidArgument.
  const Tensor& fill_(const Scalar& value) const;  // throws for a value outside the range of the dtype
  const Tensor& zero_() const;
  const Tensor& copy_(const Tensor& other) const;  // broadcasts, converts dtype, crosses devices
  const Tensor& add_(const Tensor& other, const Scalar& alpha = 1) const;
  const Tensor& add_(const Scalar& other) const;
  const Tensor& sub_(const Tensor& other, const Scalar& alpha = 1) const;
  const Tensor& sub_(const Scalar& other) const;
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& mul_(const Scalar& other) const;
  const Tensor& div_(const Tensor& other) const;
  const Tensor& div_(const Scalar& other) const;

  // --- reductions (see the free functions) -------------------------------------------------------------------------------
  Tensor sum() const;
  Tensor sum(const Shape& dims, bool keepdim = false) const;
  Tensor mean() const;
  Tensor mean(const Shape& dims, bool keepdim = false) const;
  Tensor amax(const Shape& dims = {}, bool keepdim = false) const;
  Tensor amin(const Shape& dims = {}, bool keepdim = false) const;
  Tensor max() const;
  Tensor max(const Tensor& other) const;
  std::pair<Tensor, Tensor> max(std::int64_t dim, bool keepdim = false) const;
  Tensor min() const;
  Tensor min(const Tensor& other) const;
  std::pair<Tensor, Tensor> min(std::int64_t dim, bool keepdim = false) const;
  Tensor var() const;
  Tensor var(const Shape& dims, const VarOptions& options = {}) const;
  Tensor std() const;
  Tensor std(const Shape& dims, const VarOptions& options = {}) const;
  Tensor norm(const Scalar& p = 2) const;
  Tensor norm(const Scalar& p, const Shape& dims, bool keepdim = false) const;
  Tensor argmax(std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false) const;
  Tensor argmin(std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false) const;

  // --- the most common functions, for code that comes from LibTorch (see the free functions) -----------------------------
  Tensor add(const Tensor& other, const Scalar& alpha = 1) const;
  Tensor add(const Scalar& other) const;
  Tensor sub(const Tensor& other, const Scalar& alpha = 1) const;
  Tensor sub(const Scalar& other) const;
  Tensor mul(const Tensor& other) const;
  Tensor mul(const Scalar& other) const;
  Tensor div(const Tensor& other) const;
  Tensor div(const Scalar& other) const;
  Tensor pow(const Tensor& exponent) const;
  Tensor pow(const Scalar& exponent) const;
  Tensor abs() const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor relu() const;
  Tensor sigmoid() const;
  Tensor tanh() const;
  Tensor clamp(const std::optional<Scalar>& lo, const std::optional<Scalar>& hi = std::nullopt) const;
  Tensor softmax(std::int64_t dim) const;
  Tensor log_softmax(std::int64_t dim) const;
  Tensor matmul(const Tensor& other) const;

  // --- autograd -----------------------------------------------------------------------------------------------------
  bool requires_grad() const;  // takes part in gradients
  // Only a leaf may be changed; only floating-point tensors can require grad. A leaf that is frozen (false)
  // after the forward gets no gradient from it; its hooks still run. Returns the tensor.
  const Tensor& requires_grad_(bool value = true) const;
  bool is_leaf() const;  // made by the program, not by a recorded operation
  // The gradient that backward accumulated in this leaf; undefined where there is none. Warns on others.
  Tensor grad() const;
  // Sets the gradient: of this shape, dtype and device, or undefined for none. Backward adds to it in place,
  // so it is copied where it is expanded or overlaps this tensor; otherwise it is kept.
  void set_grad(const Tensor& grad) const;
  // Runs backward from this tensor. Without a gradient it must have one element, whose gradient is 1.
  void backward() const;
  void backward(const Tensor& gradient, const BackwardOptions& options = {}) const;
  void backward(const BackwardOptions& options) const;
  // Runs when this tensor's gradient is complete; what the hook returns, if defined, replaces the gradient.
  HookHandle register_hook(Callback<Tensor(const Tensor&)> hook) const;

  // --- for the library itself: programs do without ----------------------------------------------------------------------
  TensorImpl& impl() const {
    if (!impl_) [[unlikely]]
      throw_undefined();
    return *impl_;
  }
  const Ref<TensorImpl>& ref() const { return impl_; }
  void* raw_data() const { return impl().data; }
  std::uint32_t version() const { return impl().storage->version(); }

 private:
  [[noreturn]] static void throw_undefined();
  void* checked_data(DType dtype) const;
  void* checked_span(DType dtype) const;
  Tensor host_copy(DType dtype) const;

  Ref<TensorImpl> impl_;
};

// Writes to_string().
std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);

// "(2, 3) f32 cpu": how messages describe an operand.
std::string describe(const Tensor& tensor);

}  // namespace lockstep
