/// \file
/// Devices. `cpu:1`, `cpu:2`, ... are separate virtual devices: mixing them in one operation is an error and moving
/// between them copies, exactly as with `cuda:N`.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {

/// The kinds of devices. kDeferred is for parameters without values (nn/deferred.h).
enum class DeviceType : std::uint8_t { kCpu, kCuda, kDeferred };

inline constexpr DeviceType kCPU = DeviceType::kCpu;    ///< LibTorch's name
inline constexpr DeviceType kCUDA = DeviceType::kCuda;  ///< LibTorch's name

inline constexpr int kMaxCpuDevices = 256;  ///< virtual devices cpu:0 ... cpu:255

/// One device: a kind and a number. `cpu`, the default, is `cpu:0`.
class Device {
 public:
  constexpr Device() = default;  ///< cpu:0
  /// Device 0 unless an index is given. Implicit, so that x.to(kCUDA) works.
  Device(DeviceType type, int index = 0);  // NOLINT: implicit
  /// "cpu" (the same as "cpu:0"), "cpu:N", "cuda" or "cuda:N". Throws InvalidArgument for anything else.
  Device(std::string_view text);  // NOLINT: implicit, so that {.device = "cpu:1"} reads well
  Device(const char* text) : Device(std::string_view(text)) {}
  Device(const std::string& text) : Device(std::string_view(text)) {}

  DeviceType type() const { return type_; }                    ///< the kind of device
  int index() const { return index_; }                         ///< counted from 0 among devices of one kind
  bool is_cpu() const { return type_ == DeviceType::kCpu; }    ///< true for cpu:N
  bool is_cuda() const { return type_ == DeviceType::kCuda; }  ///< true for cuda:N
  /// "cpu" for cpu:0, otherwise "cpu:1", "cuda:0", ...
  std::string to_string() const;
  /// Writes to_string().
  friend std::ostream& operator<<(std::ostream& stream, const Device& device);

  friend bool operator==(const Device&, const Device&) = default;
  friend bool operator==(const Device&, DeviceType) = delete;  ///< compare type(): LibTorch's kCUDA differs from cuda:0

 private:
  DeviceType type_ = DeviceType::kCpu;
  std::int16_t index_ = 0;
};

/// The number of devices of a kind; 0 for CUDA if the build or the machine has none, and for kDeferred.
int device_count(DeviceType type);

namespace cuda {
/// True if there is a CUDA device, and this build can use it.
inline bool is_available() { return lockstep::device_count(kCUDA) > 0; }
}  // namespace cuda

/// The cores that this process may use: its affinity, and its cgroup's quota rounded up.
int usable_cores();

}  // namespace lockstep
