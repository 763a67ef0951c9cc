#include "tests/support/peak_memory.h"

#include <errno.h>
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_COUNT_BY_HOOKS 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_COUNT_BY_HOOKS 1
#endif

namespace {

std::atomic<std::int64_t> now{0}, peak{0};

void count(std::int64_t bytes) {
  const std::int64_t sum = now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t most = peak.load(std::memory_order_relaxed);
  while (sum > most && !peak.compare_exchange_weak(most, sum, std::memory_order_relaxed)) {
  }
}

}  // namespace

PeakMemory::PeakMemory() : before_(now.load()) { peak = before_; }

std::int64_t PeakMemory::bytes() const { return peak.load() - before_; }

#ifdef LOCKSTEP_COUNT_BY_HOOKS

// Declarations from the sanitizers' runtime; GCC has no header for them.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, std::size_t),
                                                         void (*free_hook)(const volatile void*));
extern "C" std::size_t __sanitizer_get_allocated_size(const volatile void* block);

[[maybe_unused]] static const int hooks = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t bytes) { count(static_cast<std::int64_t>(bytes)); },
    [](const volatile void* block) { count(-static_cast<std::int64_t>(__sanitizer_get_allocated_size(block))); });

#else

// Definitions that replace glibc's functions of the same names.
extern "C" {

void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t number, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
void __libc_free(void* block);

static std::int64_t size_of(void* block) { return static_cast<std::int64_t>(malloc_usable_size(block)); }

static void* counted(void* block) {
  count(size_of(block));
  return block;
}

void* malloc(std::size_t bytes) noexcept { return counted(__libc_malloc(bytes)); }
void* calloc(std::size_t number, std::size_t bytes) noexcept { return counted(__libc_calloc(number, bytes)); }
void* memalign(std::size_t alignment, std::size_t bytes) noexcept { return counted(__libc_memalign(alignment, bytes)); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept { return memalign(alignment, bytes); }

int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) noexcept {
  *block = memalign(alignment, bytes);
  return *block || bytes == 0 ? 0 : ENOMEM;
}

void* realloc(void* block, std::size_t bytes) noexcept {
  const std::int64_t before = size_of(block);
  void* const moved = __libc_realloc(block, bytes);
  if (moved || bytes == 0) count(size_of(moved) - before);
  return moved;
}

void free(void* block) noexcept {
  count(-size_of(block));
  __libc_free(block);
}
}

#endif
