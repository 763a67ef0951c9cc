// The version, written here and nowhere else: CMakeLists.txt reads it.
#pragma once

#if __cplusplus < 202002L
#error "Lockstep needs C++20. Compile with -std=c++20, or link the CMake target lockstep::lockstep, which sets it."
#else

#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 1
#define LOCKSTEP_VERSION_PATCH 0

#define LOCKSTEP_DETAIL_TEXT(major, minor, patch) #major "." #minor "." #patch
#define LOCKSTEP_DETAIL_GUARD(major, minor, patch) \
  LOCKSTEP_PROGRAM_AND_LIBRARY_VERSIONS_DIFFER__program_was_compiled_with_headers_##major##_##minor##_##patch
#define LOCKSTEP_DETAIL_OF_VERSION(macro, ...) macro(__VA_ARGS__)

// As text, "1.2.3".
#define LOCKSTEP_VERSION                                                                           \
  LOCKSTEP_DETAIL_OF_VERSION(LOCKSTEP_DETAIL_TEXT, LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR, \
                             LOCKSTEP_VERSION_PATCH)

// Every file that includes Lockstep refers to this symbol, and only a library of the same version defines it. Where the
// two differ the linker (or, for a replaced .so, the loader) says so by printing the name.
#define LOCKSTEP_LINK_GUARD                                                                         \
  LOCKSTEP_DETAIL_OF_VERSION(LOCKSTEP_DETAIL_GUARD, LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR, \
                             LOCKSTEP_VERSION_PATCH)

extern "C" const char LOCKSTEP_LINK_GUARD;

namespace lockstep {

// The version of the library that is loaded; LOCKSTEP_VERSION is that of the headers.
const char* version();

namespace detail {
[[gnu::used, gnu::retain]] static const char* const link_guard = &LOCKSTEP_LINK_GUARD;
}  // namespace detail

}  // namespace lockstep

#endif
