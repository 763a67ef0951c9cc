#!/usr/bin/env bash
# Two contract programs, and one of the library launch, build and run with the installed package through find_package.
# package_pkg_config.sh builds all.
source "$(dirname "$0")/package_env.sh"
find . -maxdepth 1 -name '*.cpp' ! -name '01_*' ! -name '03_*' -delete
cat >CMakeLists.txt <<'CODE'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(lockstep 0.1 REQUIRED COMPONENTS launch)
file(GLOB programs *.cpp)
foreach(program IN LISTS programs)
  cmake_path(GET program STEM name)
  add_executable(${name} ${program})
  target_link_libraries(${name} PRIVATE lockstep::lockstep)
endforeach()
add_executable(two_ranks launcher/two_ranks.cpp)
target_link_libraries(two_ranks PRIVATE lockstep::launch)
CODE
"$CMAKE" -S . -B out -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release >configure.log ||
  { cat configure.log; exit 1; }
"$CMAKE" --build out -j2 >build.log || { cat build.log; exit 1; }
run_programs cmake out/
out/two_ranks
