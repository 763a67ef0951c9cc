# Flags of all targets here. None of them affects a user's program.
include(CheckPIESupported)
check_pie_supported(OUTPUT_VARIABLE LOCKSTEP_PIE_OUTPUT LANGUAGES CXX)

# _FORTIFY_SOURCE needs optimisation; sanitizers find more and replace it.
set(LOCKSTEP_IS_OPTIMISED $<CONFIG:Release,RelWithDebInfo,MinSizeRel>)
set(LOCKSTEP_OPTIMISE_KERNELS "" CACHE STRING "Optimisation of the CPU's kernels; empty: -O3, in quick and sanitized builds -O1")
mark_as_advanced(LOCKSTEP_OPTIMISE_KERNELS)
set(LOCKSTEP_KERNEL_OPTIMISATION ${LOCKSTEP_OPTIMISE_KERNELS})
if(NOT LOCKSTEP_KERNEL_OPTIMISATION)
  set(LOCKSTEP_KERNEL_OPTIMISATION -O3)
  if(LOCKSTEP_QUICK_BUILD OR LOCKSTEP_SANITIZE)
    set(LOCKSTEP_KERNEL_OPTIMISATION -O1)
  endif()
endif()
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_IS_OPTIMISED 0)
endif()

# LLVM's linker takes a tenth of the time for the large objects of sanitized builds.
set(LOCKSTEP_LINKER "")
if(LOCKSTEP_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  find_program(LOCKSTEP_LLD ld.lld)
  mark_as_advanced(LOCKSTEP_LLD)
  if(LOCKSTEP_LLD)
    set(LOCKSTEP_LINKER -fuse-ld=lld)
  endif()
endif()

function(lockstep_warnings target)
  if(LOCKSTEP_QUICK_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -w)  # GCC's warnings are unreliable for several files compiled as one
    return()
  endif()
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # false positive on std::string's operator+ (GCC bug 105651)
  endif()
endfunction()

# Flags of library, samples, tests and benchmarks. -ffp-contract=off: the same bits on every code path
# (docs/architecture.md).
function(lockstep_flags target)
  lockstep_warnings(${target})
  target_compile_options(${target} PRIVATE
    -ffp-contract=off -fstack-protector-strong
    "$<${LOCKSTEP_IS_OPTIMISED}:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>" $<$<BOOL:${LOCKSTEP_QUICK_BUILD}>:-O1>)
  target_link_options(${target} PRIVATE -Wl,-z,relro,-z,now,-z,noexecstack)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} ${LOCKSTEP_LINKER})
  endif()
endfunction()

# For command lines, reports and other code in which programs spend no time, but compilers much. One string: CMake drops
# an option that equals an earlier one.
function(lockstep_little_optimised target)
  if(LOCKSTEP_QUICK_BUILD)
    target_compile_options(${target} PRIVATE "SHELL:-O0 -U_FORTIFY_SOURCE")
  else()
    target_compile_options(${target} PRIVATE $<${LOCKSTEP_IS_OPTIMISED}:-O1>)
  endif()
endfunction()

# Library code: calls inside the library are direct, and an access to its thread-locals costs one load.
function(lockstep_library_flags target)
  lockstep_flags(${target})
  target_compile_options(${target} PRIVATE
    -fvisibility-inlines-hidden -fno-semantic-interposition -ftls-model=initial-exec -fno-plt)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  if(LOCKSTEP_HAS_ONEDNN)
    target_compile_definitions(${target} PRIVATE LOCKSTEP_HAS_ONEDNN=1)
  endif()
endfunction()

# A module that the library opens on first use, next to the library in the build folder and in lockstep/ when installed.
function(lockstep_add_module target source)
  add_library(${target} MODULE ${source})
  lockstep_library_flags(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_definitions(${target} PRIVATE $<${LOCKSTEP_IS_OPTIMISED}:_GLIBCXX_ASSERTIONS>)
  target_link_libraries(${target} PRIVATE lockstep fmt::fmt)
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} INSTALL_RPATH "$ORIGIN/..")
endfunction()

# Kernels of one instruction-set level. Eigen's namespace carries the level, so the linker cannot mix levels, and they
# are always optimised, so that small std:: functions are inlined rather than shared between levels. -fwrapv: integer
# tensors wrap around, as in PyTorch. -falign-loops: short loops are up to 10 % slower across two cache lines.
function(lockstep_kernel_flags target level)
  lockstep_library_flags(${target})
  if(NOT level STREQUAL "native")
    target_compile_options(${target} PRIVATE -march=x86-64-${level})
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(${target} PRIVATE -march=native)
  elseif(LOCKSTEP_CPU_LEVELS STREQUAL "native" AND NOT CMAKE_CROSSCOMPILING)  # otherwise the compiler's baseline
    target_compile_options(${target} PRIVATE -mcpu=native)
  endif()
  target_compile_options(${target} PRIVATE
    ${LOCKSTEP_KERNEL_OPTIMISATION} -falign-loops=64 -fno-math-errno -fno-trapping-math -fwrapv
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized>")  # GCC 12 warns about its own AVX-512 intrinsics
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")  # Eigen 3.4 fuses here, but else clamps tanh where it is not yet 1
    target_compile_definitions(${target} PRIVATE EIGEN_VECTORIZE_FMA)
  endif()
  target_compile_definitions(${target} PRIVATE
    LOCKSTEP_KERNELS=cpu::${level} Eigen=Eigen_${level} EIGEN_DONT_PARALLELIZE EIGEN_MPL2_ONLY)
endfunction()
