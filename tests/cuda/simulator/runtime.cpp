// The machine: devices, the driver, errors, and settings of tests.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "tests/cuda/simulator/runtime_state.h"

namespace simulator {
namespace {

constexpr int kRuntimeVersion = 13000;
constexpr int kMostDevices = 16;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current = 0;
const pid_t first_process = getpid();

// Converts "64M" to bytes.
std::size_t parse_bytes(const std::string& text) {
  std::size_t end = 0;
  const std::size_t number = std::stoull(text, &end);
  const std::string unit = text.substr(end);
  if (unit != "" && unit != "K" && unit != "M" && unit != "G") give_up("memory is '" + text + "'");
  return number << (unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : 0);
}

Settings from_environment() {
  Settings out;
  const char* const text = std::getenv("LOCKSTEP_SIMULATED_CUDA");
  std::istringstream parts(text ? text : "");
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == part.npos ? "" : part.substr(equals + 1);
    if (name == "devices") {
      out.devices = std::min(std::stoi(value), kMostDevices);
    } else if (name == "memory") {
      out.memory = parse_bytes(value);
    } else if (name == "driver") {
      out.driver = std::stoi(value);
    } else if (name == "fences") {
      out.fences = value == "1";
    } else {
      give_up("LOCKSTEP_SIMULATED_CUDA has '" + part + "', expected devices=, memory=, driver= or fences=");
    }
  }
  return out;
}

cudaError_t driver_status() {
  if (getpid() != first_process) return cudaErrorInitializationError;
  if (settings().driver < kRuntimeVersion) return cudaErrorInsufficientDriver;
  return settings().devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

struct Text {
  cudaError_t status;
  const char* name;
  const char* text;
};
constexpr Text kTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};
const Text* find_text(cudaError_t status) {
  const auto* const found =
      std::find_if(std::begin(kTexts), std::end(kTexts), [&](const Text& text) { return text.status == status; });
  return found == std::end(kTexts) ? nullptr : found;
}

}  // namespace

Settings& settings() {
  static Settings instance = from_environment();
  return instance;
}

std::recursive_mutex& mutex() {
  static std::recursive_mutex* const instance = new std::recursive_mutex;  // never destroyed: used until exit
  return *instance;
}

std::map<std::string, std::int64_t>& calls() {
  static auto* const instance = new std::map<std::string, std::int64_t>;
  return *instance;
}

DeviceState& device_state(int device) {
  static auto* const instance = new std::array<DeviceState, kMostDevices>;
  return (*instance)[static_cast<std::size_t>(device)];
}

int current_device() { return current; }

void break_device(int device, cudaError_t status) {
  const std::lock_guard lock(mutex());
  device_state(device).broken = status;
}

int take_failure(const char* function) {
  const std::lock_guard lock(mutex());
  const auto found = settings().failures.find(function);
  if (found == settings().failures.end() || found->second.after-- > 0) return 0;
  const int status = found->second.status;
  settings().failures.erase(found);
  return status;
}

void give_up(const std::string& why) {
  std::fprintf(stderr, "simulated CUDA: %s\n", why.c_str());
  std::abort();
}

Call::Call(const char* function, Needs needs) : lock_(mutex()) {
  ++calls()[function];
  refused_ = static_cast<cudaError_t>(take_failure(function));
  if (refused_ == cudaSuccess) refused_ = driver_status();
  if (refused_ == cudaSuccess && needs == Needs::kDevice) refused_ = device_state(current).broken;
}

cudaError_t Call::operator()(cudaError_t status) const {
  if (status != cudaSuccess && status != cudaErrorNotReady) last_error = status;
  return status;
}

}  // namespace simulator

cudaError_t cudaGetLastError() { return std::exchange(simulator::last_error, cudaSuccess); }

const char* cudaGetErrorName(cudaError_t status) {
  const simulator::Text* const text = simulator::find_text(status);
  return text ? text->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t status) {
  const simulator::Text* const text = simulator::find_text(status);
  return text ? text->text : "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = simulator::settings().driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  ENTER();
  *count = simulator::settings().devices;
  return answer(cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  const simulator::Call answer(__func__, simulator::Call::Needs::kDriver);
  if (answer.refused() != cudaSuccess) return answer(answer.refused());
  if (device < 0 || device >= simulator::settings().devices) return answer(cudaErrorInvalidDevice);
  ++simulator::calls()["cudaSetDevice(" + std::to_string(device) + ")"];
  simulator::current = device;
  return answer(simulator::device_state(device).broken);
}

cudaError_t cudaGetDevice(int* device) {
  const simulator::Call answer(__func__, simulator::Call::Needs::kDriver);
  if (answer.refused() != cudaSuccess) return answer(answer.refused());
  *device = simulator::current;
  return answer(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  ENTER();
  if (device < 0 || device >= simulator::settings().devices) return answer(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      return answer(cudaSuccess);
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
      *value = 0;
      return answer(cudaSuccess);
    default:
      return answer(cudaErrorNotSupported);
  }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER();
  if (device < 0 || device >= simulator::settings().devices) return answer(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "simulated GPU");
  for (char& byte : properties->uuid.bytes) byte = static_cast<char>(device + 1);
  properties->totalGlobalMem = simulator::settings().memory;
  properties->major = 9;
  return answer(cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER();
  const int count = simulator::settings().devices;
  if (device < 0 || device >= count || peer < 0 || peer >= count) return answer(cudaErrorInvalidDevice);
  *can = device != peer;
  return answer(cudaSuccess);
}
