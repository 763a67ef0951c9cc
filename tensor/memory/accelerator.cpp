#include "lockstep/tensor/memory/accelerator_internal.h"

#include <atomic>
#include <mutex>

#include "lockstep/base/check_internal.h"
#include "lockstep/base/modules_internal.h"

#if LOCKSTEP_LINKED_CUDA
extern "C" const lockstep::AcceleratorModule* lockstep_accelerator_cuda();
#endif

namespace lockstep {
namespace {

// The only check for a device that this build does not support.
AcceleratorEntry* entry_for(Device device) {
#if LOCKSTEP_LINKED_CUDA
  static_cast<void>(device);
  return lockstep_accelerator_cuda;
#else
  std::string why;
  if (void* const entry = open_module("cuda", "lockstep_accelerator_cuda", why))
    return reinterpret_cast<AcceleratorEntry*>(entry);
  if (why.empty())
    throw NotBuilt(fmt::format("{}: this build of Lockstep has no CUDA; use cpu, or a build with LOCKSTEP_WITH_CUDA=ON",
                               device.to_string()));
  throw NotBuilt(fmt::format("{}: cannot open the module {}: {}", device.to_string(), module_file("cuda"), why));
#endif
}

constinit std::atomic<Accelerator*> in_use{nullptr};

Accelerator& open(Device device) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Accelerator* const found = in_use.load()) return *found;
  const AcceleratorModule* const module = entry_for(device)();
  if (std::string(module->version) != LOCKSTEP_VERSION)
    throw NotBuilt(
        fmt::format("{}: the CUDA module is from Lockstep {}, the library is {}; install both from one build",
                    device.to_string(), module->version, LOCKSTEP_VERSION));
  in_use.store(module->get());
  return *in_use.load();
}

[[noreturn]] void throw_no_device(Accelerator& accelerator, Device device) {
  const int count = accelerator.device_count();
  if (count == 0)
    throw DeviceError(fmt::format("{}: no CUDA device: {}; use cpu", device.to_string(), accelerator.why_none()));
  throw DeviceError(fmt::format("{}: there is no such device: this machine has {}", device.to_string(),
                                count == 1 ? "one, cuda:0" : fmt::format("{}, cuda:0 to cuda:{}", count, count - 1)));
}

}  // namespace

void throw_deferred() {
  throw InvalidArgument(
      "tensor: this parameter has no values yet, because its initialisation is deferred; call nn::materialize(module), "
      "or construct what computes with parameters without nn::DeferredInit");
}

Accelerator& accelerator(Device device) {
  if (device.type() == DeviceType::kDeferred) [[unlikely]]
    throw_deferred();
  Accelerator* const found = in_use.load(std::memory_order_acquire);
  Accelerator& out = found ? *found : open(device);
  if (device.index() >= out.device_count()) [[unlikely]]
    throw_no_device(out, device);
  return out;
}

int device_count(DeviceType type) {
  if (type == DeviceType::kCpu) return kMaxCpuDevices;
  if (type == DeviceType::kDeferred) return 0;
  try {
    Accelerator* const found = opened_accelerator();
    return (found ? *found : open(Device(type, 0))).device_count();
  } catch (const NotBuilt&) {
    return 0;
  }
}

Accelerator* opened_accelerator() { return in_use.load(std::memory_order_acquire); }

void set_accelerator(Accelerator* instead) { in_use.store(instead); }

}  // namespace lockstep
