# Starting and supervising the ranks of one host: a library of its own, which lockstep.h does not lead to. It is static, so that
# programs load no further library, and has fmt compiled in, so that they link none.
file(GLOB launch_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/parallel/launch/*.cpp)
add_library(lockstep_launch STATIC ${launch_sources})
add_library(lockstep::launch ALIAS lockstep_launch)
lockstep_library_flags(lockstep_launch)
target_compile_features(lockstep_launch PUBLIC cxx_std_20)
target_compile_definitions(lockstep_launch PRIVATE $<${LOCKSTEP_IS_OPTIMISED}:_GLIBCXX_ASSERTIONS>)
target_link_libraries(lockstep_launch PUBLIC lockstep
  PRIVATE $<BUILD_INTERFACE:fmt::fmt-header-only> $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
set_target_properties(lockstep_launch PROPERTIES EXPORT_NAME launch)
