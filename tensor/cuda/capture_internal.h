// CUDA graphs and events.
#pragma once

#include <memory>

#include "lockstep/tensor/accelerator_internal.h"

namespace lockstep::cuda {

// These act on the current device; see Accelerator.
void begin_capture(CaptureMemory& memory);
std::unique_ptr<RecordedWork> end_capture();
void* allocate_unordered(std::size_t bytes);
std::unique_ptr<DeviceEvent> record_event();

}  // namespace lockstep::cuda
