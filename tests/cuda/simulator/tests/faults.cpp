// Every failure in CUDA, cuBLAS and cuDNN is an error of ours, leaks no memory, and the program can continue.
#include <cublas_v2.h>
#include <cudnn.h>

#include <set>

#include "tests/cuda/simulator/simulator.h"
#include "tests/support/testing.h"

namespace {

namespace nn = ls::nn;

struct Net : nn::Module {
  nn::Conv2d& convolution = add<nn::Conv2d>("convolution", 1, 4, 3, nn::Conv2dOptions{.padding = 1});
  nn::BatchNorm2d& norm = add<nn::BatchNorm2d>("norm", 4);
  nn::MaxPool2d& pool = add<nn::MaxPool2d>("pool", 2);
  nn::Linear& hidden = add<nn::Linear>("hidden", 64, 40);
  nn::Dropout& dropout = add<nn::Dropout>("dropout", 0.25);
  nn::Linear& out = add<nn::Linear>("out", 40, 8);
  ls::Tensor forward(const ls::Tensor& x) const override {
    return out(dropout(ls::relu(hidden(pool(norm(convolution(x))).flatten(1)))));
  }
};

// Uses every function of a device: training, from the host and as a graph, sorting, copies, events of another device.
std::vector<ls::Tensor> work(const ls::Device& device) {
  const ls::Device neighbour("cuda:1");
  ls::manual_seed(3);
  Net net;
  net.to(device);
  ls::optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  const ls::Tensor x = numbers({6, 1, 8, 8}).to(device);
  const ls::Tensor y = ls::tensor({0, 1, 2, 3, 4, 5}).to(ls::kInt64).to(device);
  ls::Tensor loss;
  const auto step = [&] {
    optimizer.zero_grad();
    loss = nn::cross_entropy(net(x), y);
    loss.backward();
    optimizer.step();
  };
  step();
  ls::CudaGraph graph(device);
  graph.capture(step);
  graph.replay();
  std::vector<ls::Tensor> out;
  for (const nn::Parameter& parameter : net.parameters()) out.push_back(parameter.tensor().detach().to("cpu"));
  const ls::NoGradGuard no_grad;
  out.push_back(loss.to("cpu"));
  out.push_back(ls::sort(x.reshape({48, 8})).second.to("cpu"));
  out.push_back((x.to(neighbour) + 1).to(device).to("cpu"));
  out.push_back(ls::matmul(x.reshape({8, 48}).to(ls::kFloat64), x.reshape({48, 8}).to(ls::kFloat64)).to("cpu"));
  ls::empty_cache();
  return out;
}

bool same(const std::vector<ls::Tensor>& a, const std::vector<ls::Tensor>& b) {
  bool all = a.size() == b.size();
  for (std::size_t i = 0; all && i < a.size(); ++i) all = same_bits(a[i], b[i]);
  return all;
}

std::int64_t live_bytes() {
  std::int64_t bytes = 0;
  for (int i = 0; i < ls::device_count(ls::DeviceType::kCuda); ++i)
    bytes += ls::allocator_stats({ls::DeviceType::kCuda, i}).allocated_bytes;
  return bytes;
}

// Returns a failure status of the function's library.
int status_for(const std::string& function) {
  if (function.starts_with("cublas")) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (function.starts_with("cudnn")) return CUDNN_STATUS_EXECUTION_FAILED;
  return function.find("Alloc") != function.npos ? cudaErrorMemoryAllocation : cudaErrorUnknown;
}

// Returns the text of the error, or an empty text: failures in destructors, for example, are ignored.
std::string fail(const std::string& function, int after, const ls::Device& device) {
  simulator::settings().failures[function] = {after, status_for(function)};
  std::string text;
  try {
    (void)work(device);
  } catch (const ls::Error& error) {
    text = error.what();
  }
  simulator::settings().failures.clear();
  return text;
}

// Functions whose failures are not reported: those that free resources or only query. Failed allocations are tried
// again.
bool may_be_silent(const std::string& function, bool is_last_call) {
  static const std::vector<std::string> kSilent = {"cudaFree",
                                                   "cudaFreeAsync",
                                                   "cudaEventDestroy",
                                                   "cudaGraphDestroy",
                                                   "cudaGraphExecDestroy",
                                                   "cudaGetDevice",
                                                   "cublasLtMatmulDescDestroy",
                                                   "cublasLtMatmulPreferenceDestroy",
                                                   "cublasLtMatrixLayoutDestroy",
                                                   "cudnnDestroyConvolutionDescriptor",
                                                   "cudnnDestroyFilterDescriptor",
                                                   "cudnnDestroyTensorDescriptor"};
  if (std::find(kSilent.begin(), kSilent.end(), function) != kSilent.end()) return true;
  if (function.find("Alloc") != function.npos) return true;
  return is_last_call && (function == "cudaSetDevice" || function == "cudaStreamSynchronize");  // at the end of a graph
}

}  // namespace

// First, while no device is in use.
TEST_CASE("a device whose preparation fails is prepared by the next call") {
  const auto want = work("cuda:0");
  int device = 2;
  for (const char* const function :
       {"cudaStreamCreateWithFlags", "cudaDeviceGetDefaultMemPool", "cudaMemPoolSetAttribute",
        "cudaDeviceCanAccessPeer", "cudaMemPoolSetAccess", "cudaHostAlloc", "cublasCreate_v2", "cublasSetStream_v2",
        "cublasSetWorkspace_v2", "cublasSetMathMode", "cublasLtCreate", "cudnnCreate", "cudnnSetStream"}) {
    INFO(function);
    const ls::Device fresh(ls::DeviceType::kCuda, device++);
    const std::string error = fail(function, 0, fresh);
    const bool tried_again = std::string(function).ends_with("Create_v2") || std::string(function) == "cudnnCreate";
    CHECK(error.empty() == tried_again);  // allocations are tried again without the cache
    CHECK(same(work(fresh), want));
  }
}

TEST_CASE("every failing call is reported or harmless, and the next step is right") {
  const auto want = work("cuda:0");
  (void)work("cuda:0");
  const std::int64_t live = live_bytes();
  simulator::calls().clear();
  (void)work("cuda:0");
  const auto counts = simulator::calls();
  CHECK(counts.size() > 40);
  for (const auto& call : counts) {
    const std::string& function = call.first;
    const std::int64_t count = call.second;
    if (function.find('(') != function.npos) continue;
    for (const std::int64_t after : std::set<std::int64_t>{0, count / 2, count - 1}) {
      INFO(function, ", call ", after, " of ", count);
      const std::string error = fail(function, static_cast<int>(after), "cuda:0");
      CHECK_MESSAGE((error.empty() ? may_be_silent(function, after == count - 1) : contains(error, "cuda")), error);
      CHECK(live_bytes() == live);
      CHECK(same(work("cuda:0"), want));
    }
  }
}

TEST_CASE("a device without memory reports its memory, and remains usable") {
  const ls::Device device("cuda:15");  // no other test uses it
  const std::size_t before = simulator::settings().memory;
  simulator::settings().memory = std::size_t{64} << 20;
  {
    const ls::Tensor live = ls::zeros({1 << 20}, {.device = device});
    (void)ls::zeros({1 << 21}, {.device = device});  // 8 MB, cached from here on
    const std::string error = error_of<ls::DeviceError>([&] { (void)ls::zeros({1 << 24}, {.device = device}); });
    CHECK(contains(error, "out of memory: 67108864 bytes requested"));
    CHECK(contains(error, "of 67108864 are free"));
    CHECK(contains(error, "in live tensors, 0 cached"));  // the cached blocks were freed first
    CHECK(ls::sum(live + 1).item<float>() == 1 << 20);
    // Two thirds of the memory, half of which a cached block of another size holds: that block is freed first.
    (void)ls::zeros({1 << 23}, {.device = device});
    (void)ls::zeros({3 << 22}, {.device = device});
  }
  simulator::settings().memory = before;
}

// The last test: the device is unusable afterwards.
TEST_CASE("after a fault of a kernel each call fails, and the remaining memory can be freed") {
  const ls::Device device("cuda:1");
  ls::Tensor x = ls::ones({10}, {.device = device});
  simulator::break_device(1, cudaErrorIllegalAddress);
  const std::string error = error_of<ls::DeviceError>([&] { (void)ls::sum(x).item<float>(); });
  CHECK(contains(error, "an illegal memory access was encountered (cudaErrorIllegalAddress)"));
  CHECK(
      contains(error_of<ls::DeviceError>([&] { (void)ls::zeros({1}, {.device = device}); }), "illegal memory access"));
  CHECK(ls::sum(ls::ones({3}, {.device = "cuda:0"})).item<float>() == 3);
  x = {};
  ls::CudaGraph graph("cuda:0");
  graph.capture([] { (void)ls::ones({3}, {.device = "cuda:0"}); });
}
