#include "lockstep/base/device.h"

#include <charconv>
#include <ostream>

#include "lockstep/base/check_internal.h"

namespace lockstep {

namespace {
void check_index(DeviceType type, int index) {
  const int limit = type == DeviceType::kCpu ? kMaxCpuDevices : 128;
  LOCKSTEP_CHECK(index >= 0 && index < limit, "device: index {} is outside [0, {})", index, limit);
}
}  // namespace

Device::Device(DeviceType type, int index) : type_(type), index_(static_cast<std::int16_t>(index)) {
  check_index(type, index);
}

Device::Device(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  LOCKSTEP_CHECK(kind == "cpu" || kind == "cuda", "device: \"{}\" is not a device; use cpu, cpu:N, cuda or cuda:N",
                 text);
  type_ = kind == "cpu" ? DeviceType::kCpu : DeviceType::kCuda;
  if (colon == std::string_view::npos) return;
  int index = -1;
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  LOCKSTEP_CHECK(error == std::errc() && end == digits.data() + digits.size(),
                 "device: \"{}\" has no valid index; use cpu:N or cuda:N", text);
  check_index(type_, index);
  index_ = static_cast<std::int16_t>(index);
}

std::string Device::to_string() const {
  if (type_ == DeviceType::kDeferred) return "deferred";
  if (is_cpu() && index_ == 0) return "cpu";
  return fmt::format("{}:{}", is_cpu() ? "cpu" : "cuda", index_);
}

std::ostream& operator<<(std::ostream& stream, const Device& device) { return stream << device.to_string(); }

}  // namespace lockstep
