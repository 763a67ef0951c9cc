/// \file
/// The CPU thread pool: its threads share the work of one large operation. Results never depend on their number.
#pragma once

#include <cstdint>

#include "lockstep/base/error.h"

namespace lockstep {

/// Number of threads that one operation may use, the caller's included. Default: LOCKSTEP_NUM_THREADS, otherwise the
/// cores this process may run on. Throws InvalidArgument if LOCKSTEP_NUM_THREADS is not a number from 1 to 1024; so
/// does the first operation.
int num_threads();
/// Throws InvalidArgument below 1.
void set_num_threads(int count);

/// Calls body(context, chunk) once for each chunk in [0, chunks), on the pool and the calling thread, and waits. Runs
/// on the calling thread alone if the pool is busy or inside another parallel_for. Rethrows the exception of
/// the lowest chunk that threw; chunks that have not begun are left out then.
void parallel_for(std::int64_t chunks, void (*body)(void* context, std::int64_t chunk), void* context);

}  // namespace lockstep
