// cuDNN: convolutions, as sums in f64. Of the algorithms that it offers, only the last two are deterministic in full
// precision; the first of these needs workspace. Each pass has its own numbers for the algorithms.
#include <cudnn.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/cuda/simulator/numbers.h"
#include "tests/cuda/simulator/simulator.h"

struct cudnnContext {
  int device;
  cudaStream_t stream;
};
struct cudnnTensorStruct {
  cudaDataType_t type;
  int n, c, h, w;
};
struct cudnnFilterStruct {
  cudaDataType_t type;
  int k, c, h, w;
};
struct cudnnConvolutionStruct {
  int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace {

constexpr std::size_t kWorkspace = 4096;  // of the algorithm that Lockstep should choose
constexpr unsigned char kScratch = 0x5a;

class DnnCall {
 public:
  explicit DnnCall(const char* function) : lock_(simulator::mutex()) {
    ++simulator::calls()[function];
    refused_ = static_cast<cudnnStatus_t>(simulator::take_failure(function));
  }
  cudnnStatus_t refused() const { return refused_; }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  cudnnStatus_t refused_;
};
#define ENTER_DNN()             \
  const DnnCall call(__func__); \
  if (call.refused() != CUDNN_STATUS_SUCCESS) return call.refused()

// Dimensions of x (n, c, h, w), weight (k, c / groups, h, w) and y (n, k, h, w).
struct Convolution {
  cudnnTensorStruct x, y;
  cudnnFilterStruct weight;
  cudnnConvolutionStruct how;

  // Calls visit(index in x, in weight, in y) for every product of the convolution.
  template <class F>
  void for_each(F visit) const {
    const int out_of_group = weight.k / how.groups;
    for (int n = 0; n < y.n; ++n) {
      for (int k = 0; k < y.c; ++k) {
        for (int at_h = 0; at_h < y.h; ++at_h) {
          for (int at_w = 0; at_w < y.w; ++at_w) for_window(n, k, k / out_of_group * weight.c, at_h, at_w, visit);
        }
      }
    }
  }
  template <class F>
  void for_window(int n, int k, int first_channel, int at_h, int at_w, F& visit) const {
    const std::int64_t y_place = ((std::int64_t{n} * y.c + k) * y.h + at_h) * y.w + at_w;
    for (int c = 0; c < weight.c; ++c) {
      for (int i = 0; i < weight.h; ++i) {
        for (int j = 0; j < weight.w; ++j) {
          const int h = at_h * how.stride_h - how.pad_h + i * how.dilation_h;
          const int w = at_w * how.stride_w - how.pad_w + j * how.dilation_w;
          if (h < 0 || h >= x.h || w < 0 || w >= x.w) continue;
          visit(((std::int64_t{n} * x.c + first_channel + c) * x.h + h) * x.w + w,
                ((std::int64_t{k} * weight.c + c) * weight.h + i) * weight.w + j, y_place);
        }
      }
    }
  }
  bool is_possible() const {
    const auto out = [](int in, int kernel, int pad, int stride, int dilation) {
      return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
    };
    return x.n == y.n && y.c == weight.k && x.c == weight.c * how.groups && weight.k % how.groups == 0 &&
           x.type == y.type && x.type == weight.type &&
           y.h == out(x.h, weight.h, how.pad_h, how.stride_h, how.dilation_h) &&
           y.w == out(x.w, weight.w, how.pad_w, how.stride_w, how.dilation_w);
  }
};

std::size_t count(const cudnnTensorStruct& t) { return static_cast<std::size_t>(t.n) * t.c * t.h * t.w; }
std::size_t count(const cudnnFilterStruct& f) { return static_cast<std::size_t>(f.k) * f.c * f.h * f.w; }

// Offers an algorithm that depends on the order of threads, one in TF32, the one to choose, and a slow alternative to
// it.
template <class Perf, class Algorithm>
cudnnStatus_t offer(const Convolution& c, int most, int* found, Perf* ways, Algorithm first, Algorithm second,
                    Algorithm third, Algorithm fourth) {
  if (!c.is_possible()) return CUDNN_STATUS_BAD_PARAM;
  const cudnnMathType_t full = c.x.type == CUDA_R_64F ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
  const Perf all[] = {{first, CUDNN_STATUS_SUCCESS, 1, 0, CUDNN_NON_DETERMINISTIC, full, {}},
                      {second, CUDNN_STATUS_SUCCESS, 2, 0, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH, {}},
                      {third, CUDNN_STATUS_SUCCESS, 3, kWorkspace, CUDNN_DETERMINISTIC, full, {}},
                      {fourth, CUDNN_STATUS_SUCCESS, 4, 0, CUDNN_DETERMINISTIC, full, {}}};
  *found = std::min(most, 4);
  std::copy_n(all, *found, ways);
  return CUDNN_STATUS_SUCCESS;
}

template <class Algorithm>
struct Choice {
  Algorithm taken, right, slow;
  void* workspace;
  std::size_t bytes;
};

// Computes out as the sum of the products a b that belong to each of its elements.
template <class Algorithm, class F>
cudnnStatus_t start(cudnnHandle_t handle, const Convolution& c, const Choice<Algorithm>& choice, const void* alpha,
                    const void* beta, const std::pair<void*, std::size_t>& out, F add) {
  const cudaDataType_t type = c.x.type, scale = type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
  if (!c.is_possible() || simulator::load(alpha, scale, 0) != 1 || simulator::load(beta, scale, 0) != 0 ||
      (choice.taken != choice.slow && (choice.taken != choice.right || choice.bytes < kWorkspace ||
                                       !simulator::is_device_memory(choice.workspace, choice.bytes))))
    return CUDNN_STATUS_BAD_PARAM;
  if (handle->device != simulator::current_device()) return CUDNN_STATUS_EXECUTION_FAILED;
  const cudaError_t status = simulator::enqueue(handle->stream, [=] {
    if (choice.bytes > 0) std::memset(choice.workspace, kScratch, choice.bytes);
    std::vector<double> sums(out.second);
    add(c, sums);
    for (std::size_t i = 0; i < out.second; ++i)
      simulator::store(out.first, type, static_cast<std::int64_t>(i), sums[i]);
    return true;
  });
  return status == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

void require_memory(const void* data, std::size_t elements, cudaDataType_t type) {
  if (elements > 0 && !simulator::is_device_memory(data, elements * simulator::size_of(type)))
    simulator::give_up("cuDNN was given an operand that is not memory of a device");
}

cudaDataType_t type_of(cudnnDataType_t type) { return type == CUDNN_DATA_DOUBLE ? CUDA_R_64F : CUDA_R_32F; }

}  // namespace

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  ENTER_DNN();
  if (cudaFree(nullptr) != cudaSuccess) return CUDNN_STATUS_ALLOC_FAILED;  // cuDNN allocates here
  *handle = new cudnnContext{simulator::current_device(), nullptr};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  ENTER_DNN();
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

// --- descriptors ----------------------------------------------------------------------------------------------------

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) {
  ENTER_DNN();
  *tensor = new cudnnTensorStruct{};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  ENTER_DNN();
  delete tensor;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  ENTER_DNN();
  if (format != CUDNN_TENSOR_NCHW || n <= 0 || c <= 0 || h <= 0 || w <= 0) return CUDNN_STATUS_BAD_PARAM;
  *tensor = {type_of(type), n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) {
  ENTER_DNN();
  *filter = new cudnnFilterStruct{};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  ENTER_DNN();
  delete filter;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  ENTER_DNN();
  if (format != CUDNN_TENSOR_NCHW || k <= 0 || c <= 0 || h <= 0 || w <= 0) return CUDNN_STATUS_BAD_PARAM;
  *filter = {type_of(type), k, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) {
  ENTER_DNN();
  *convolution = new cudnnConvolutionStruct{};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  ENTER_DNN();
  delete convolution;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t) {
  ENTER_DNN();
  if (mode != CUDNN_CROSS_CORRELATION || pad_h < 0 || pad_w < 0 || stride_h <= 0 || stride_w <= 0 || dilation_h <= 0 ||
      dilation_w <= 0)
    return CUDNN_STATUS_BAD_PARAM;
  *convolution = {pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  ENTER_DNN();
  convolution->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  ENTER_DNN();
  convolution->math = math;
  return CUDNN_STATUS_SUCCESS;
}

// --- forward --------------------------------------------------------------------------------------------------------

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t weight, cudnnConvolutionDescriptor_t how,
                                                     cudnnTensorDescriptor_t y, int most, int* found,
                                                     cudnnConvolutionFwdAlgoPerf_t* ways) {
  ENTER_DNN();
  return offer({*x, *y, *weight, *how}, most, found, ways, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
               CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
               CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_shape,
                                      const void* x, cudnnFilterDescriptor_t weight_shape, const void* weight,
                                      cudnnConvolutionDescriptor_t how, cudnnConvolutionFwdAlgo_t algorithm,
                                      void* workspace, std::size_t bytes, const void* beta,
                                      cudnnTensorDescriptor_t y_shape, void* y) {
  ENTER_DNN();
  const Convolution c{*x_shape, *y_shape, *weight_shape, *how};
  require_memory(x, count(c.x), c.x.type);
  require_memory(weight, count(c.weight), c.x.type);
  require_memory(y, count(c.y), c.x.type);
  const Choice choice{algorithm, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                      CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, workspace, bytes};
  return start(handle, c, choice, alpha, beta, {y, count(c.y)}, [=](const Convolution& own, std::vector<double>& sums) {
    own.for_each([&](std::int64_t at_x, std::int64_t at_weight, std::int64_t at_y) {
      sums[static_cast<std::size_t>(at_y)] +=
          simulator::load(x, own.x.type, at_x) * simulator::load(weight, own.x.type, at_weight);
    });
  });
}

// --- backward -------------------------------------------------------------------------------------------------------

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t weight,
                                                          cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t how,
                                                          cudnnTensorDescriptor_t x, int most, int* found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* ways) {
  ENTER_DNN();
  return offer({*x, *y, *weight, *how}, most, found, ways, CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
               CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD,
               CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           cudnnFilterDescriptor_t weight_shape, const void* weight,
                                           cudnnTensorDescriptor_t y_shape, const void* grad,
                                           cudnnConvolutionDescriptor_t how, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void* workspace, std::size_t bytes, const void* beta,
                                           cudnnTensorDescriptor_t x_shape, void* x) {
  ENTER_DNN();
  const Convolution c{*x_shape, *y_shape, *weight_shape, *how};
  require_memory(x, count(c.x), c.x.type);
  require_memory(weight, count(c.weight), c.x.type);
  require_memory(grad, count(c.y), c.x.type);
  const Choice choice{algorithm, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace,
                      bytes};
  return start(handle, c, choice, alpha, beta, {x, count(c.x)}, [=](const Convolution& own, std::vector<double>& sums) {
    own.for_each([&](std::int64_t at_x, std::int64_t at_weight, std::int64_t at_y) {
      sums[static_cast<std::size_t>(at_x)] +=
          simulator::load(grad, own.x.type, at_y) * simulator::load(weight, own.x.type, at_weight);
    });
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t how,
                                                            cudnnFilterDescriptor_t weight, int most, int* found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* ways) {
  ENTER_DNN();
  return offer({*x, *y, *weight, *how}, most, found, ways, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
               CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING,
               CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_shape,
                                             const void* x, cudnnTensorDescriptor_t y_shape, const void* grad,
                                             cudnnConvolutionDescriptor_t how,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             std::size_t bytes, const void* beta, cudnnFilterDescriptor_t weight_shape,
                                             void* weight) {
  ENTER_DNN();
  const Convolution c{*x_shape, *y_shape, *weight_shape, *how};
  require_memory(x, count(c.x), c.x.type);
  require_memory(weight, count(c.weight), c.x.type);
  require_memory(grad, count(c.y), c.x.type);
  const Choice choice{algorithm, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                      workspace, bytes};
  return start(handle, c, choice, alpha, beta, {weight, count(c.weight)},
               [=](const Convolution& own, std::vector<double>& sums) {
                 own.for_each([&](std::int64_t at_x, std::int64_t at_weight, std::int64_t at_y) {
                   sums[static_cast<std::size_t>(at_weight)] +=
                       simulator::load(grad, own.x.type, at_y) * simulator::load(x, own.x.type, at_x);
                 });
               });
}
