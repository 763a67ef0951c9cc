# An overlay port: vcpkg install lockstep --overlay-ports=packaging/vcpkg. It builds the tree that contains it.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS
  -DLOCKSTEP_CPU_LEVELS=all -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_SAMPLES=OFF -DLOCKSTEP_WITH_ONEDNN=OFF
  -DLOCKSTEP_WITH_PNG=OFF -DLOCKSTEP_WITH_JPEG=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/lockstep)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
