# Finds NVIDIA libraries that are separate from the CUDA toolkit (cuDNN, NCCL): in the system's folders, next to the
# toolkit, in CUDA_HOME, and in NVIDIA's Python wheels. Wheels have nvidia/<library>/{include,lib} in the site-packages
# of the python3 in PATH, of an environment or of the user, and only libraries with a version suffix.

# The folders that may contain include/ and lib/; `roots` first.
function(lockstep_nvidia_folders out roots)
  find_program(LOCKSTEP_PYTHON python3)
  mark_as_advanced(LOCKSTEP_PYTHON)
  cmake_path(GET LOCKSTEP_PYTHON PARENT_PATH python)
  set(folders "")
  foreach(root IN ITEMS ${roots} "$ENV{CUDA_HOME}" "${CUDAToolkit_TARGET_DIR}" "${CUDAToolkit_LIBRARY_ROOT}"
                        "${CUDAToolkit_BIN_DIR}/..")
    if(root)
      file(GLOB wheels ${root}/nvidia/*)
      list(APPEND folders ${root} ${wheels})
    endif()
  endforeach()
  foreach(prefix IN ITEMS "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}" "${python}/.." "$ENV{HOME}/.local" /usr/local /usr
                          ${CMAKE_PREFIX_PATH})
    if(prefix)
      file(GLOB wheels ${prefix}/nvidia/* ${prefix}/lib/python3*/site-packages/nvidia/*
        ${prefix}/lib/python3*/dist-packages/nvidia/*)
      list(APPEND folders ${wheels})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set(${out} ${folders} PARENT_SCOPE)
endfunction()

# Sets the cache variables LOCKSTEP_<name>_INCLUDE and LOCKSTEP_<name>_LIBRARY; of several libraries the one next to
# the header. `soname` is the file name in wheels: libnccl.so.2.
function(lockstep_find_nvidia name header library soname roots)
  lockstep_nvidia_folders(folders "${roots}")
  find_path(LOCKSTEP_${name}_INCLUDE ${header} HINTS ${folders} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(LOCKSTEP_${name}_LIBRARY NAMES ${library} ${soname} NAMES_PER_DIR
    HINTS "${LOCKSTEP_${name}_INCLUDE}/.." ${folders} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64 lib/x64)
  mark_as_advanced(LOCKSTEP_${name}_INCLUDE LOCKSTEP_${name}_LIBRARY)
endfunction()

# Links a module with the library, and lets the installed module find it in a folder that the loader does not search.
function(lockstep_link_nvidia target name)
  target_include_directories(${target} SYSTEM PRIVATE ${LOCKSTEP_${name}_INCLUDE})
  target_link_libraries(${target} PRIVATE ${LOCKSTEP_${name}_LIBRARY})
  cmake_path(GET LOCKSTEP_${name}_LIBRARY PARENT_PATH folder)
  if(LOCKSTEP_${name}_ROOT OR folder MATCHES "-packages/nvidia/")
    set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH ${folder})
  endif()
endfunction()
