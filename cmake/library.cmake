# The library. Sources are found by folder, so a new file needs no edit here.
set(LOCKSTEP_MODULES tensor autograd nn optim data parallel)
set(folders tensor tensor/cpu autograd nn optim data)
foreach(folder IN ITEMS rendezvous comm comm/backends replicated simulate)
  list(APPEND folders parallel/${folder})
endforeach()

set(sources "")
foreach(folder IN LISTS folders)
  file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(APPEND sources ${found})
endforeach()
list(FILTER sources EXCLUDE REGEX "/parallel/comm/backends/nccl_[^/]*\\.cpp$")
list(FILTER sources EXCLUDE REGEX "/tensor/(cpu/kernels_[^/]*|kernels_table)\\.cpp$")
foreach(source IN LISTS sources)  # modules are built by cmake/backends.cmake
  if(source MATCHES "/parallel/comm/backends/")
    file(STRINGS ${source} entry REGEX "^extern \"C\" .* lockstep_backend_" LIMIT_COUNT 1)
    if(entry)
      list(REMOVE_ITEM sources ${source})
    endif()
  endif()
endforeach()
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tensor/cpu/kernels_*.cpp)
list(APPEND kernel_sources ${PROJECT_SOURCE_DIR}/tensor/kernels_table.cpp)

# Kernels come first: their files take longest to compile, so they are to start first.
if(LOCKSTEP_CPU_LEVELS STREQUAL "all" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(LOCKSTEP_LEVELS v2 v3 v4)
  set(level_definition LOCKSTEP_HAVE_LEVELS_ALL=1)
elseif(LOCKSTEP_CPU_LEVELS MATCHES "^(native|all)$")
  set(LOCKSTEP_LEVELS native)
  set(level_definition LOCKSTEP_HAVE_LEVEL_NATIVE=1)
else()
  message(FATAL_ERROR "LOCKSTEP_CPU_LEVELS is '${LOCKSTEP_CPU_LEVELS}', expected native or all")
endif()
set(kernel_objects "")
foreach(level IN LISTS LOCKSTEP_LEVELS)
  if(kernel_sources)
    add_library(lockstep_kernels_${level} OBJECT ${kernel_sources})
    lockstep_kernel_flags(lockstep_kernels_${level} ${level})
    target_link_libraries(lockstep_kernels_${level} PRIVATE Eigen3::Eigen)
    list(APPEND kernel_objects $<TARGET_OBJECTS:lockstep_kernels_${level}>)
  endif()
endforeach()

add_library(lockstep ${sources})
add_library(lockstep::lockstep ALIAS lockstep)
target_sources(lockstep PRIVATE ${kernel_objects})
lockstep_library_flags(lockstep)
target_compile_features(lockstep PUBLIC cxx_std_20)
target_compile_definitions(lockstep PRIVATE $<${LOCKSTEP_IS_OPTIMISED}:_GLIBCXX_ASSERTIONS>)
target_include_directories(lockstep INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_include_directories(lockstep PRIVATE ${PROJECT_BINARY_DIR}/generated)  # what cmake/backends.cmake writes
target_include_directories(lockstep SYSTEM PRIVATE ${LOCKSTEP_XXHASH_INCLUDE})
target_include_directories(lockstep SYSTEM PRIVATE ${OPENSSL_INCLUDE_DIR})  # libcrypto is opened on first use
target_compile_definitions(lockstep PRIVATE XXH_INLINE_ALL=)  # xxHash as a header: one library less to load at start
target_link_libraries(lockstep PRIVATE fmt::fmt ZLIB::ZLIB Threads::Threads ${CMAKE_DL_LIBS}
  $<BUILD_INTERFACE:Eigen3::Eigen> $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
if(LOCKSTEP_HAS_ONEDNN)
  target_link_libraries(lockstep PRIVATE ${LOCKSTEP_ONEDNN_LIBRARIES})
endif()
if(LOCKSTEP_QUICK_BUILD)
  set_target_properties(lockstep PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  target_precompile_headers(lockstep PRIVATE
    <algorithm> <chrono> <condition_variable> <functional> <map> <memory> <mutex> <optional> <sstream> <string> <thread>
    <vector> <fmt/format.h>)
endif()
target_link_options(lockstep PRIVATE -Wl,-Bsymbolic-functions,--as-needed)
if(NOT LOCKSTEP_SANITIZE)
  target_link_options(lockstep PRIVATE -Wl,-z,defs)  # a forgotten kernel is an error here, not in the user's link
endif()
set_target_properties(lockstep PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

if(EXISTS ${PROJECT_SOURCE_DIR}/tensor/cpu/dispatch.cpp)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tensor/cpu/dispatch.cpp
    PROPERTIES COMPILE_DEFINITIONS ${level_definition})
endif()

get_target_property(kind lockstep TYPE)
string(REPLACE ";" ", " levels "${LOCKSTEP_LEVELS}")
lockstep_report("library" on "${kind}")
lockstep_report("CPU kernels" on "levels: ${levels} (LOCKSTEP_CPU_LEVELS=${LOCKSTEP_CPU_LEVELS})")
if(LOCKSTEP_SANITIZE)
  lockstep_report("sanitizers" on "${LOCKSTEP_SANITIZE}")
endif()
