#include "lockstep/tensor/cuda/convolution_internal.h"

#include "lockstep/base/check_internal.h"

#if LOCKSTEP_HAS_CUDNN
#include <cudnn.h>

#include <bit>
#include <limits>

#include "lockstep/tensor/cuda/handles_internal.h"
#endif

namespace lockstep::cuda {

#if LOCKSTEP_HAS_CUDNN

namespace {

using raw::Convolution;
using raw::ConvolutionPass;

constexpr std::size_t kMostWorkspace = std::size_t{1} << 30;  // bytes; algorithms that need more are not used

void check_dnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) [[unlikely]]
    throw DeviceError(fmt::format("cuda:{}: {}: {}", current_device(), call, cudnnGetErrorString(status)));
}

cudnnHandle_t handle() {
  Handles& own = handles();
  if (!own.dnn) {
    cudnnHandle_t made = nullptr;
    check_dnn(with_memory([&] { return cudnnCreate(&made); }), "cudnnCreate");
    check_dnn(cudnnSetStream(made, stream()), "cudnnSetStream");
    own.dnn = made;
  }
  return own.dnn;
}

template <class T, cudnnStatus_t (*kCreate)(T*), cudnnStatus_t (*kDestroy)(T)>
class Descriptor {
 public:
  Descriptor() { check_dnn(kCreate(&descriptor_), "creating a cuDNN descriptor"); }
  ~Descriptor() { static_cast<void>(kDestroy(descriptor_)); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator T() const { return descriptor_; }  // NOLINT: implicit, so that it is used like the descriptor

 private:
  T descriptor_ = nullptr;
};
using TensorDescriptor = Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

int narrow(std::int64_t size) {
  LOCKSTEP_CHECK(size <= std::numeric_limits<int>::max(), "conv2d: cuDNN supports sizes up to {}, got {}",
                 std::numeric_limits<int>::max(), size);
  return static_cast<int>(size);
}

class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : bytes_(bytes), data_(bytes > 0 ? allocate(bytes) : nullptr) {}
  ~Workspace() {
    if (data_) deallocate(data_, bytes_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// The operands of a convolution as cuDNN descriptors.
class Operation {
 public:
  Operation(const Convolution& c, ConvolutionPass pass, DType dtype)
      : wide_(dtype == kFloat64), key_(pass, dtype, std::bit_cast<std::array<std::int64_t, 16>>(c)) {
    const cudnnDataType_t type = wide_ ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    const raw::Windows& w = c.windows;
    check_dnn(cudnnSetTensor4dDescriptor(x_, CUDNN_TENSOR_NCHW, type, narrow(c.images), narrow(c.groups * c.in),
                                         narrow(w.input.height), narrow(w.input.width)),
              "cudnnSetTensor4dDescriptor");
    check_dnn(cudnnSetTensor4dDescriptor(y_, CUDNN_TENSOR_NCHW, type, narrow(c.images), narrow(c.groups * c.out),
                                         narrow(w.output.height), narrow(w.output.width)),
              "cudnnSetTensor4dDescriptor");
    check_dnn(cudnnSetFilter4dDescriptor(weight_, type, CUDNN_TENSOR_NCHW, narrow(c.groups * c.out), narrow(c.in),
                                         narrow(w.kernel.height), narrow(w.kernel.width)),
              "cudnnSetFilter4dDescriptor");
    check_dnn(
        cudnnSetConvolution2dDescriptor(how_, narrow(w.padding.height), narrow(w.padding.width),
                                        narrow(w.stride.height), narrow(w.stride.width), narrow(w.dilation.height),
                                        narrow(w.dilation.width), CUDNN_CROSS_CORRELATION, type),
        "cudnnSetConvolution2dDescriptor");
    check_dnn(cudnnSetConvolutionGroupCount(how_, narrow(c.groups)), "cudnnSetConvolutionGroupCount");
    // FMA math excludes TF32.
    if (!wide_) check_dnn(cudnnSetConvolutionMathType(how_, CUDNN_FMA_MATH), "cudnnSetConvolutionMathType");
  }

  // Starts a pass; `a` and `b` are the operands of convolve().
  void start(ConvolutionPass pass, const void* a, const void* b, void* out) const {
    switch (pass) {
      case ConvolutionPass::kForward:
        return run<cudnnConvolutionFwdAlgoPerf_t>(
            "cudnnConvolutionForward",
            [&](int most, int* count, auto* found) {
              return cudnnGetConvolutionForwardAlgorithm_v7(handle(), x_, weight_, how_, y_, most, count, found);
            },
            [&](auto algorithm, const Workspace& room) {
              return cudnnConvolutionForward(handle(), factor<1>(wide_), x_, a, weight_, b, how_, algorithm,
                                             room.data(), room.bytes(), factor<0>(wide_), y_, out);
            });
      case ConvolutionPass::kBackwardInput:
        return run<cudnnConvolutionBwdDataAlgoPerf_t>(
            "cudnnConvolutionBackwardData",
            [&](int most, int* count, auto* found) {
              return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle(), weight_, y_, how_, x_, most, count, found);
            },
            [&](auto algorithm, const Workspace& room) {
              return cudnnConvolutionBackwardData(handle(), factor<1>(wide_), weight_, b, y_, a, how_, algorithm,
                                                  room.data(), room.bytes(), factor<0>(wide_), x_, out);
            });
      case ConvolutionPass::kBackwardWeight:
        return run<cudnnConvolutionBwdFilterAlgoPerf_t>(
            "cudnnConvolutionBackwardFilter",
            [&](int most, int* count, auto* found) {
              return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle(), x_, y_, how_, weight_, most, count, found);
            },
            [&](auto algorithm, const Workspace& room) {
              return cudnnConvolutionBackwardFilter(handle(), factor<1>(wide_), x_, b, y_, a, how_, algorithm,
                                                    room.data(), room.bytes(), factor<0>(wide_), weight_, out);
            });
    }
  }

 private:
  // Starts the best algorithm that `list` finds. cuDNN can propose an algorithm for a shape and reject it for the
  // operands: then the next one is used, also in later calls.
  template <class Way, class List, class Start>
  void run(const char* call, List list, Start start) const {
    std::vector<ConvolutionWay>& ways = handles().convolutions.find(key_, [&] { return choose<Way>(list); });
    for (;;) {
      const Workspace room(ways.front().workspace);
      const cudnnStatus_t status = start(static_cast<decltype(Way::algo)>(ways.front().algorithm), room);
      const bool is_refused = CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED;
      if (!is_refused || ways.size() == 1) return check_dnn(status, call);
      ways.erase(ways.begin());
    }
  }
  // The deterministic algorithms that compute in the operands' precision.
  template <class Way, class List>
  static std::vector<ConvolutionWay> choose(List list) {
    constexpr int kMost = 16;
    Way ways[kMost];
    int count = 0;
    check_dnn(list(kMost, &count, ways), "cudnnGetConvolutionAlgorithm");
    std::vector<ConvolutionWay> out;
    for (int i = 0; i < count; ++i) {
      const bool exact = ways[i].mathType == CUDNN_DEFAULT_MATH || ways[i].mathType == CUDNN_FMA_MATH;
      if (ways[i].status == CUDNN_STATUS_SUCCESS && ways[i].determinism == CUDNN_DETERMINISTIC && exact &&
          ways[i].memory <= kMostWorkspace)
        out.push_back({static_cast<int>(ways[i].algo), ways[i].memory});
    }
    if (!out.empty()) return out;
    throw DeviceError(
        fmt::format("cuda:{}: conv2d: cuDNN has no deterministic algorithm for these sizes with a "
                    "workspace of up to {} bytes",
                    current_device(), kMostWorkspace));
  }

  bool wide_;
  ConvolutionKey key_;
  TensorDescriptor x_, y_;
  FilterDescriptor weight_;
  ConvolutionDescriptor how_;
};

}  // namespace

void convolve(const Convolution& convolution, ConvolutionPass pass, const void* a, const void* b, void* out,
              DType dtype) {
  Operation(convolution, pass, dtype).start(pass, a, b, out);
  check_launch("conv2d");
}

#else

void convolve(const raw::Convolution&, raw::ConvolutionPass, const void*, const void*, void*, DType) {
  throw NotBuilt(
      "conv2d: this build has no cuDNN, which convolutions on cuda devices need\n"
      "build with -DLOCKSTEP_WITH_CUDNN=ON (and -DLOCKSTEP_CUDNN_ROOT=FOLDER), or run this layer on the CPU");
}

#endif

}  // namespace lockstep::cuda
