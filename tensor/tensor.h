/// \file
/// Tensor: a cheap handle on shared storage, with a shape, strides, a dtype and a device.
///
/// Copying a Tensor copies the handle; views (`transpose`, `slice`, `t[i]`, ...) share the storage; `clone` copies the
/// elements. Members that change elements end in `_`, are const (the handle does not change), and throw InvalidArgument
/// on a tensor that requires grad while grad mode is on. Every operation is a free function (autograd/ops/functions.h); the
/// common ones are members too. One thread at a time may change a tensor; any number may read it.
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

#include "lockstep/base/callback.h"
#include "lockstep/base/device.h"
#include "lockstep/base/ref.h"
#include "lockstep/base/small_blocks.h"
#include "lockstep/tensor/accessor.h"
#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/memory/storage.h"
#include "lockstep/tensor/scalar.h"
#include "lockstep/tensor/shape.h"

namespace lockstep {

class Tensor;
class TensorIndex;

/// Autograd's data of a tensor: history or gradient. tensor/ owns the slot and does not read it.
struct AutogradSlot : SmallObject {
  virtual ~AutogradSlot() = default;
};

/// Options of tensor creation. A member that is not set means the function's default: f32 for most functions and i64
/// for integers, on the cpu; `zeros_like` and `ones_like` use dtype and device of their tensor.
struct TensorOptions {
  std::optional<DType> dtype = std::nullopt;    ///< dtype of the elements
  std::optional<Device> device = std::nullopt;  ///< the tensor's device
  bool requires_grad = false;                   ///< true: a leaf for which backward computes a gradient
};

/// TensorOptions as LibTorch writes them: a dtype, a device, or `dtype(kInt64).device(kCUDA).requires_grad(true)`.
class TensorOption {
 public:
  TensorOption(DType dtype) : options_{.dtype = dtype} {}        // NOLINT: implicit, as the following two
  TensorOption(Device device) : options_{.device = device} {}    // NOLINT
  TensorOption(DeviceType type) : TensorOption(Device(type)) {}  // NOLINT
  explicit TensorOption(const TensorOptions& options) : options_(options) {}
  const TensorOptions& options() const { return options_; }  ///< the aggregate
  /// The same options with another dtype, device, or requires_grad.
  TensorOption dtype(DType dtype) const { return TensorOption({dtype, options_.device, options_.requires_grad}); }
  TensorOption device(Device device) const { return TensorOption({options_.dtype, device, options_.requires_grad}); }
  TensorOption requires_grad(bool on = true) const { return TensorOption({options_.dtype, options_.device, on}); }

 private:
  TensorOptions options_;
};
/// The first of several options: dtype(kInt64).device(kCUDA).
inline TensorOption dtype(DType dtype) { return dtype; }
inline TensorOption device(Device device) { return device; }
inline TensorOption requires_grad(bool on = true) { return TensorOption(TensorOptions{.requires_grad = on}); }

/// Options of `var` and `std`.
struct VarOptions {
  std::int64_t correction = 1;  ///< subtracted from the number of elements in the divisor; 0: the biased variance
  bool keepdim = false;         ///< keep the reduced dimensions with size 1
};

/// Options of backward.
struct BackwardOptions {
  bool retain_graph = false;  ///< keep the saved tensors, so that backward can run again
  bool create_graph = false;  ///< record backward itself, for second derivatives (implies retain_graph)
};

/// A handle that removes a hook. It may outlive the tensor or module; destroying the handle does not remove the hook.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(Callback<void()> remove) : remove_(std::move(remove)) {}
  /// Removes the hook. A second call does nothing.
  void remove() {
    if (remove_) std::exchange(remove_, {})();
  }

 private:
  Callback<void()> remove_;
};

/// The state behind a handle. `shape` and `numel` never change; `Module::to`, and sharded training, replace the storage of
/// a parameter's tensor and the members that describe its elements.
struct TensorImpl final : RefCounted<TensorImpl>, SmallObject {
  /// `offset`: of the first element in the storage, in bytes.
  TensorImpl(Ref<Storage> storage, std::int64_t offset, const Shape& shape, const Strides& strides, DType dtype);
  /// Row-major from the start of the storage; `numel` is the product of the sizes.
  TensorImpl(Ref<Storage> storage, const Shape& shape, std::int64_t numel, DType dtype);
  /// Shares the elements of `other`, without its autograd data.
  explicit TensorImpl(const TensorImpl& other);
  static void destroy(const TensorImpl* impl) { delete impl; }

  /// Address of the first element. Not kept between operations: a releasable storage may be supplied elsewhere.
  std::byte* data() const { return static_cast<std::byte*>(storage->data()) + offset; }

  Ref<Storage> storage;
  std::int64_t offset;  ///< of the first element in the storage, in bytes
  std::int64_t numel;
  Shape shape;
  Strides strides;  ///< in elements
  DType dtype;
  bool contiguous;  ///< row-major without gaps
  std::unique_ptr<AutogradSlot> autograd;
};

/// A handle to elements; see the head of this file. Copies refer to the same elements.
class Tensor {
 public:
  Tensor() = default;  ///< undefined: defined() is false, and using it in an operation is an error
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  /// Assignment to a variable makes it refer to the elements of `other`.
  Tensor& operator=(const Tensor& other) & = default;
  Tensor& operator=(Tensor&& other) & noexcept = default;
  /// Assignment to a temporary changes its elements: x[0] = y is copy_, x[0] = 5 is fill_.
  Tensor& operator=(const Tensor& other) &&;
  Tensor& operator=(const Scalar& value) &&;
  ~Tensor() = default;

  // --- properties ---------------------------------------------------------------------------------------------------
  bool defined() const { return static_cast<bool>(impl_); }   ///< false for Tensor()
  const Shape& shape() const { return impl().shape; }         ///< the sizes of the dimensions
  const Shape& sizes() const { return impl().shape; }         ///< LibTorch's name of shape()
  const Strides& strides() const { return impl().strides; }   ///< in elements, one for each dimension
  std::int64_t size(std::int64_t dim) const;                  ///< of one dimension; negative values count from the end
  std::int64_t stride(std::int64_t dim) const;                ///< in elements
  int dim() const { return impl().shape.dim(); }              ///< number of dimensions
  std::int64_t numel() const { return impl().numel; }         ///< number of elements
  DType dtype() const { return impl().dtype; }                ///< dtype of the elements
  DType scalar_type() const { return impl().dtype; }          ///< LibTorch's name of dtype()
  Device device() const { return impl().storage->device(); }  ///< device of the storage
  bool is_cpu() const { return device().is_cpu(); }           ///< true on cpu:N
  bool is_cuda() const { return device().is_cuda(); }         ///< true on cuda:N
  /// Dtype and device, to create a similar tensor.
  TensorOptions options() const { return {.dtype = dtype(), .device = device()}; }
  bool is_contiguous() const { return impl().contiguous; }                         ///< row-major, without gaps
  bool is_floating_point() const { return lockstep::is_floating_point(dtype()); }  ///< f16, bf16, f32 or f64

  /// The only element, converted. Throws InvalidArgument unless numel() is 1.
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

  /// Address of the first element. Throws InvalidArgument if T is not the tensor's dtype.
  template <class T>
  T* data() const {
    return static_cast<T*>(checked_data(dtype_of<T>));
  }
  template <class T>
  T* data_ptr() const {  ///< LibTorch's name of data()
    return data<T>();
  }
  /// The elements by index: `auto a = x.accessor<float, 2>(); a[i][j] = 1;`. Valid while this tensor exists. Throws
  /// InvalidArgument if T is not the dtype, N not the number of dimensions, or the tensor not on the CPU.
  template <class T, std::size_t N>
  TensorAccessor<T, N> accessor() const& {
    static_assert(N > 0, "accessor<T, N>(): N is the number of dimensions; a 0-d tensor has item<T>()");
    return {static_cast<T*>(checked_accessor(dtype_of<T>, N)), shape().begin(), strides().begin()};
  }
  template <class T, std::size_t N>
  TensorAccessor<T, N> accessor() && = delete;  ///< keep the tensor in a variable, which must outlive the accessor
  /// The elements in order. Throws InvalidArgument if T is not the dtype, or the tensor is not contiguous CPU memory.
  template <class T>
  std::span<T> span() const {
    return {static_cast<T*>(checked_span(dtype_of<T>)), static_cast<std::size_t>(numel())};
  }
  /// A copy of the elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const {
    const Tensor dense = host_copy(dtype_of<T>);
    const T* first = static_cast<const T*>(dense.raw_data());
    return std::vector<T>(first, first + numel());
  }
  /// The tensor as PyTorch prints it: "tensor([[1., 2.]])".
  std::string to_string() const;

  // --- views: share storage and are differentiable ------------------------------------------------------------------
  // One size may be -1. If the elements would have to move, `view` throws and `reshape` copies.
  Tensor view(const Shape& shape) const;
  Tensor reshape(const Shape& shape) const;                        ///< as view, or a copy
  Tensor transpose(std::int64_t dim_a, std::int64_t dim_b) const;  ///< swaps two dimensions
  Tensor permute(const Shape& dims) const;                         ///< dimension i of the result is dims[i]
  Tensor t() const;                                                ///< 2-D: transpose(0, 1); 0-D and 1-D: itself
  Tensor squeeze() const;                                          ///< without dimensions of size 1
  Tensor squeeze(std::int64_t dim) const;                          ///< without this one, if its size is 1
  Tensor unsqueeze(std::int64_t dim) const;                        ///< with a new dimension of size 1 before `dim`
  /// Sizes of 1 are repeated without copying; -1 keeps a size; new dimensions are prepended.
  Tensor expand(const Shape& shape) const;
  Tensor expand_as(const Tensor& other) const { return expand(other.shape()); }  ///< expand(other.shape())
  Tensor view_as(const Tensor& other) const { return view(other.shape()); }      ///< view(other.shape())

  Tensor select(std::int64_t dim, std::int64_t index) const;  ///< one position of `dim`; removes `dim`
  /// Elements start, start + step, ... below end along `dim`; negative positions count from the end, as in Python.
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step = 1) const;
  /// `length` positions from `start` on.
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
  /// Joins these dimensions into one; copies if they cannot be joined without moving elements.
  Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;
  Tensor operator[](std::int64_t index) const;  ///< select(0, index)

  /// The elements that the indices name, as x[...] in Python: x.index({Slice(0, 2), "...", ids}); the names are in
  /// lockstep::indexing (tensor_index.h). Integers, slices and None give a view. Tensors give a copy: their shapes
  /// broadcast, and take the place of the dimensions that they index, or the front if these are not adjacent.
  Tensor index(const std::vector<TensorIndex>& indices) const;

  /// A copy that holds the tensor counts[d] times along dimension d; further counts come first, for new dimensions.
  Tensor repeat(const Shape& counts) const;

  // --- conversions: the tensor itself if nothing changes, otherwise a copy ------------------------------------------
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor to(const char* device) const { return to(Device(device)); }
  Tensor cpu() const { return to(Device()); }        ///< on cpu:0
  Tensor cuda() const { return to(Device(kCUDA)); }  ///< on cuda:0
  Tensor contiguous() const;
  Tensor clone() const;   ///< always a copy, contiguous
  Tensor detach() const;  ///< shares storage, without history

  // --- in place: change the elements and return the tensor; x += y is add_(y) -------------------------------------
  // Changes are not recorded: while grad mode is on, a tensor or an operand that requires grad is an error. The dtype
  // stays; a result of a higher category (bool < integers < floats) throws InvalidArgument.
  const Tensor& fill_(const Scalar& value) const;  ///< throws for a value outside the range of the dtype
  const Tensor& zero_() const;
  const Tensor& uniform_(double from = 0, double to = 1) const;  ///< random numbers, uniform in [from, to)
  const Tensor& normal_(double mean = 0, double std = 1) const;  ///< random numbers, normal
  const Tensor& copy_(const Tensor& other) const;                ///< broadcasts, converts dtype, crosses devices
  /// Sets the elements index(indices), or adds to them in order if `accumulate`. `values` broadcasts; next to index
  /// tensors it has this dtype. Of several values for one element, the last is kept on CPU devices.
  const Tensor& index_put_(const std::vector<TensorIndex>& indices, const Tensor& values,
                           bool accumulate = false) const;
  const Tensor& index_put_(const std::vector<TensorIndex>& indices, const Scalar& value) const;
  const Tensor& add_(const Tensor& other, const Scalar& alpha = 1) const;
  const Tensor& add_(const Scalar& other) const;
  const Tensor& sub_(const Tensor& other, const Scalar& alpha = 1) const;
  const Tensor& sub_(const Scalar& other) const;
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& mul_(const Scalar& other) const;
  const Tensor& div_(const Tensor& other) const;
  const Tensor& div_(const Scalar& other) const;
  const Tensor& pow_(const Tensor& exponent) const;
  const Tensor& pow_(const Scalar& exponent) const;
  const Tensor& clamp_(const std::optional<Scalar>& lo, const std::optional<Scalar>& hi = std::nullopt) const;
  const Tensor& masked_fill_(const Tensor& mask, const Scalar& value) const;
  const Tensor& abs_() const;
  const Tensor& ceil_() const;
  const Tensor& cos_() const;
  const Tensor& exp_() const;
  const Tensor& floor_() const;
  const Tensor& log_() const;
  const Tensor& neg_() const;
  const Tensor& reciprocal_() const;
  const Tensor& relu_() const;
  const Tensor& round_() const;
  const Tensor& rsqrt_() const;
  const Tensor& sigmoid_() const;
  const Tensor& sign_() const;
  const Tensor& sin_() const;
  const Tensor& sqrt_() const;
  const Tensor& square_() const;
  const Tensor& tanh_() const;
  const Tensor& trunc_() const;
  const Tensor& operator+=(const Tensor& other) const { return add_(other); }
  const Tensor& operator+=(const Scalar& other) const { return add_(other); }
  const Tensor& operator-=(const Tensor& other) const { return sub_(other); }
  const Tensor& operator-=(const Scalar& other) const { return sub_(other); }
  const Tensor& operator*=(const Tensor& other) const { return mul_(other); }
  const Tensor& operator*=(const Scalar& other) const { return mul_(other); }
  const Tensor& operator/=(const Tensor& other) const { return div_(other); }
  const Tensor& operator/=(const Scalar& other) const { return div_(other); }

  // --- reductions (see the free functions) --------------------------------------------------------------------------
  Tensor sum(const Shape& dims = {}, bool keepdim = false) const;
  Tensor mean(const Shape& dims = {}, bool keepdim = false) const;
  Tensor amax(const Shape& dims = {}, bool keepdim = false) const;
  Tensor amin(const Shape& dims = {}, bool keepdim = false) const;
  Tensor max() const;
  Tensor max(const Tensor& other) const;
  std::pair<Tensor, Tensor> max(std::int64_t dim, bool keepdim = false) const;
  Tensor min() const;
  Tensor min(const Tensor& other) const;
  std::pair<Tensor, Tensor> min(std::int64_t dim, bool keepdim = false) const;
  Tensor var(const Shape& dims = {}, const VarOptions& options = {}) const;
  Tensor std(const Shape& dims = {}, const VarOptions& options = {}) const;
  Tensor norm(const Scalar& p = 2, const Shape& dims = {}, bool keepdim = false) const;
  Tensor prod() const;
  Tensor prod(std::int64_t dim, bool keepdim = false) const;
  Tensor argmax(std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false) const;
  Tensor argmin(std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false) const;

  // --- the most common functions, as members like LibTorch's (see the free functions) -------------------------------
  Tensor add(const Tensor& other, const Scalar& alpha = 1) const;
  Tensor add(const Scalar& other) const;
  Tensor sub(const Tensor& other, const Scalar& alpha = 1) const;
  Tensor sub(const Scalar& other) const;
  Tensor mul(const Tensor& other) const;
  Tensor mul(const Scalar& other) const;
  Tensor div(const Tensor& other) const;
  Tensor div(const Scalar& other) const;
  Tensor eq(const Tensor& other) const;  ///< as ==, like the following ones
  Tensor eq(const Scalar& other) const;
  Tensor ne(const Tensor& other) const;
  Tensor ne(const Scalar& other) const;
  Tensor lt(const Tensor& other) const;
  Tensor lt(const Scalar& other) const;
  Tensor le(const Tensor& other) const;
  Tensor le(const Scalar& other) const;
  Tensor gt(const Tensor& other) const;
  Tensor gt(const Scalar& other) const;
  Tensor ge(const Tensor& other) const;
  Tensor ge(const Scalar& other) const;
  Tensor pow(const Tensor& exponent) const;
  Tensor pow(const Scalar& exponent) const;
  Tensor abs() const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor relu() const;
  Tensor sigmoid() const;
  Tensor tanh() const;
  Tensor sin() const;
  Tensor cos() const;
  Tensor floor() const;
  Tensor ceil() const;
  Tensor round() const;
  Tensor trunc() const;
  Tensor sign() const;
  Tensor neg() const;
  Tensor square() const;
  Tensor reciprocal() const;
  Tensor rsqrt() const;
  Tensor isnan() const;
  Tensor isfinite() const;
  Tensor logical_not() const;
  Tensor remainder(const Tensor& other) const;
  Tensor remainder(const Scalar& other) const;
  Tensor clamp(const std::optional<Scalar>& lo, const std::optional<Scalar>& hi = std::nullopt) const;
  Tensor softmax(std::int64_t dim) const;
  Tensor log_softmax(std::int64_t dim) const;
  Tensor matmul(const Tensor& other) const;
  Tensor mm(const Tensor& other) const;
  Tensor bmm(const Tensor& other) const;
  Tensor dot(const Tensor& other) const;
  Tensor any(const Shape& dims = {}, bool keepdim = false) const;
  Tensor all(const Shape& dims = {}, bool keepdim = false) const;
  Tensor logsumexp(const Shape& dims, bool keepdim = false) const;
  Tensor cumsum(std::int64_t dim) const;
  std::vector<Tensor> split(std::int64_t size, std::int64_t dim = 0) const;
  std::vector<Tensor> split(const std::vector<std::int64_t>& sizes, std::int64_t dim = 0) const;
  std::vector<Tensor> unbind(std::int64_t dim = 0) const;
  std::vector<Tensor> chunk(std::int64_t count, std::int64_t dim = 0) const;
  Tensor masked_fill(const Tensor& mask, const Scalar& value) const;
  Tensor tril(std::int64_t diagonal = 0) const;
  Tensor triu(std::int64_t diagonal = 0) const;
  Tensor flip(const Shape& dims) const;
  Tensor roll(const Shape& shifts, const Shape& dims = {}) const;
  Tensor repeat_interleave(std::int64_t repeats, std::optional<std::int64_t> dim = std::nullopt) const;
  Tensor movedim(const Shape& source, const Shape& destination) const;
  Tensor diagonal(std::int64_t offset = 0, std::int64_t dim1 = 0, std::int64_t dim2 = 1) const;
  Tensor diag(std::int64_t offset = 0) const;
  Tensor nonzero() const;
  Tensor masked_select(const Tensor& mask) const;
  Tensor argsort(std::int64_t dim = -1, bool descending = false) const;
  Tensor scatter(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  Tensor scatter(std::int64_t dim, const Tensor& index, const Scalar& value) const;
  Tensor index_add(std::int64_t dim, const Tensor& index, const Tensor& src, const Scalar& alpha = 1) const;
  Tensor index_select(std::int64_t dim, const Tensor& index) const;
  Tensor gather(std::int64_t dim, const Tensor& index) const;
  Tensor scatter_add(std::int64_t dim, const Tensor& index, const Tensor& src) const;
  std::pair<Tensor, Tensor> sort(std::int64_t dim = -1, bool descending = false) const;
  std::pair<Tensor, Tensor> topk(std::int64_t k, std::int64_t dim = -1, bool largest = true) const;

  // --- autograd -----------------------------------------------------------------------------------------------------
  bool requires_grad() const;  ///< true if backward computes or passes on its gradient
  /// Only a leaf may be changed; only floating-point tensors can require grad. A leaf that is frozen (false) after the
  /// forward gets no gradient from that forward; its hooks still run. Returns the tensor.
  const Tensor& requires_grad_(bool value = true) const;
  bool is_leaf() const;  ///< not the result of a recorded operation
  /// Made under InferenceGuard, or a view of such a tensor.
  bool is_inference() const { return impl().storage->is_inference(); }
  /// The gradient that backward accumulated in this leaf; undefined if there is none. Warns on non-leaves.
  Tensor grad() const;
  /// Sets the gradient: a tensor of this shape, dtype and device, or undefined for none. Backward adds to it in place,
  /// so a gradient that is expanded or overlaps this tensor is copied; any other is kept as it is.
  void set_grad(const Tensor& grad) const;
  /// Runs backward from this tensor. Without a gradient argument the tensor must have one element; its gradient is 1.
  void backward() const;
  void backward(const Tensor& gradient, const BackwardOptions& options = {}) const;
  void backward(const BackwardOptions& options) const;
  /// Registers a hook that runs when this tensor's gradient is complete. A defined result replaces the gradient.
  HookHandle register_hook(Callback<Tensor(const Tensor&)> hook) const;

  // --- internal: for the library itself -----------------------------------------------------------------------------
  TensorImpl& impl() const {
    if (!impl_) [[unlikely]]
      throw_undefined();
    return *impl_;
  }
  const Ref<TensorImpl>& ref() const { return impl_; }
  void* raw_data() const { return impl().data(); }
  std::uint32_t version() const { return impl().storage->version(); }

 private:
  [[noreturn]] static void throw_undefined();
  void* checked_data(DType dtype) const;
  void* checked_span(DType dtype) const;
  void* checked_accessor(DType dtype, std::size_t dims) const;
  Tensor host_copy(DType dtype) const;

  Ref<TensorImpl> impl_;
};

/// Writes to_string().
std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);

/// "(2, 3) f32 cpu": how messages describe an operand.
std::string describe(const Tensor& tensor);

}  // namespace lockstep
