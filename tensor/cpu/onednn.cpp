#include "lockstep/tensor/cpu/onednn_internal.h"

#include "lockstep/base/check_internal.h"

#if LOCKSTEP_HAS_ONEDNN
#include <dnnl.h>
#include <signal.h>

extern "C" {  // functions of libgomp, which oneDNN uses; only some compilers install its header
int omp_get_max_threads();
void omp_set_num_threads(int);
}
#endif

namespace lockstep::cpu {

#if LOCKSTEP_HAS_ONEDNN

namespace {
// With several OpenMP threads oneDNN's bits vary, and a forked child hangs in libgomp, so oneDNN gets one thread. The
// destructor restores the caller's setting.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Blocks signals. On AVX-512, products of oneDNN (seen in 2.6.3) point the stack register into a buffer of the heap: the
// frame of a signal handler, of some kilobytes, would overwrite the heap in front of the buffer.
class NoSignals {
 public:
  NoSignals() {
    if (!is_needed()) return;
    const sigset_t wanted = all();
    ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  }
  ~NoSignals() {
    if (is_needed()) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  static bool is_needed() {
    static const bool result = (dnnl_get_effective_cpu_isa() & kAvx512) == kAvx512;
    return result;
  }
  // All but those that a fault in the product itself would raise.
  static sigset_t all() {
    sigset_t set;
    sigfillset(&set);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&set, fault);
    return set;
  }

  static constexpr unsigned kAvx512 = dnnl_cpu_isa_avx512_core;
  sigset_t before_;
};
}  // namespace

bool has_onednn() { return true; }
std::string onednn_version() {
  const dnnl_version_t* const version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

void onednn_sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                  std::int64_t lda, const float* b, std::int64_t ldb, float* out, std::int64_t ldc) {
  const OneThread one_thread;
  const NoSignals no_signals;
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, 0.0f, out, ldc);
  if (status != dnnl_success)
    throw DeviceError(fmt::format("cpu: oneDNN's sgemm failed with status {}", static_cast<int>(status)));
}

#else

bool has_onednn() { return false; }
std::string onednn_version() { return "no oneDNN"; }

void onednn_sgemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, const float*, std::int64_t, const float*,
                  std::int64_t, float*, std::int64_t) {
  throw NotBuilt("cpu: this build has no oneDNN");
}

#endif

}  // namespace lockstep::cpu
