# Installs library, public headers, CMake package, lockstep.pc, lockstep-launch.pc; `cpack -G DEB` puts the same into one .deb.
include(CMakePackageConfigHelpers)

install(TARGETS lockstep lockstep_launch lockstep_simulate EXPORT lockstepTargets)
foreach(module IN LISTS LOCKSTEP_BACKEND_MODULES)
  install(TARGETS ${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep COMPONENT ${module})
endforeach()
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

# Public headers are the roots below and the headers that they include, directly or indirectly; all others are internal.
function(lockstep_public_headers header out)
  set(found ${${out}})
  list(APPEND found ${header})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include \"lockstep/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"lockstep/([^\"]+)\".*" "\\1" included "${line}")
    if(NOT included IN_LIST found AND EXISTS ${PROJECT_SOURCE_DIR}/${included})
      lockstep_public_headers(${included} found)
    endif()
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

set(public_headers "")
foreach(root IN ITEMS lockstep.h parallel/launch/launch.h parallel/simulate/simulate.h)
  lockstep_public_headers(${root} public_headers)
endforeach()
install(FILES include/lockstep/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep)
foreach(header IN LISTS public_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${folder})
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${public_headers})
# Exercises for classes (students copy them to a folder of their own), guide and documents, the samples, and the sources
# that they explain. Their places relative to each other stay, so that links between them work.
set(share ${CMAKE_INSTALL_DATADIR}/lockstep)
install(DIRECTORY exercises DESTINATION ${share} USE_SOURCE_PERMISSIONS
  PATTERN build EXCLUDE PATTERN solutions EXCLUDE PATTERN .gitignore EXCLUDE)
install(DIRECTORY docs samples tools tensor autograd nn optim data parallel DESTINATION ${share})
install(DIRECTORY tests/contract DESTINATION ${share}/tests)
install(FILES tests/parallel/same_bits.cpp DESTINATION ${share}/tests/parallel)
install(FILES packaging/README.md DESTINATION ${share}/packaging)
install(DIRECTORY bench/results DESTINATION ${share}/bench)
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE DESTINATION ${share})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lockstep RENAME copyright)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lockstep)

configure_package_config_file(cmake/lockstepConfig.cmake.in lockstepConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
write_basic_package_version_file(lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

# A shared library names its own dependencies, so a program need not; a static library's are listed for the program.
file(RELATIVE_PATH prefix_from_pkgconfig /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
set(pc_requires "")
set(pc_libs "")
if(NOT BUILD_SHARED_LIBS)
  set(pc_requires "fmt, zlib")
  set(pc_libs " -pthread")
  if(LOCKSTEP_HAS_ONEDNN)
    string(APPEND pc_libs " -ldnnl -l:libgomp.so.1")
  endif()
endif()
configure_file(cmake/lockstep.pc.in lockstep.pc @ONLY)
configure_file(cmake/lockstep-launch.pc.in lockstep-launch.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc ${PROJECT_BINARY_DIR}/lockstep-launch.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR "Lockstep contributors")
set(CPACK_PACKAGE_CONTACT "Lockstep contributors <lockstep@localhost>")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libssl3 | libssl3t64")  # opened on first use, so dpkg-shlibdeps does not find it
# Backends with dependencies of their own are separate packages: lockstep-gloo, lockstep-mpi.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
foreach(module IN LISTS LOCKSTEP_BACKEND_MODULES)
  string(TOUPPER ${module} id)
  string(REPLACE "_" "-" package ${module})
  set(CPACK_DEBIAN_${id}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${id}_PACKAGE_DEPENDS "lockstep (= ${PROJECT_VERSION})")
endforeach()
set(CPACK_COMPONENTS_ALL Unspecified ${LOCKSTEP_BACKEND_MODULES})
list(REMOVE_ITEM CPACK_COMPONENTS_ALL lockstep_cuda lockstep_nccl)  # their dependencies are not in Debian; `cmake --install` installs them
set(CPACK_OUTPUT_FILE_PREFIX ${PROJECT_BINARY_DIR}/package)
include(CPack)
