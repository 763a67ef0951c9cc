# Usual seconds of the tests that take longer than 12 s: preset release, four tests at a time, two cores. ctest starts
# the longest tests first. A test that takes ten times its usual time hangs, and is ended.
set(LOCKSTEP_USUAL_SECONDS
  cuda.attention 20
  exercises.installed 22
  exercises.skeletons 13
  exercises.solutions 73
  exercises.wrong 140
  network.intruders 30  # scripts/chaos.sh sends ten times as many intruders
  nn.hostile_safetensors 13
  parallel.chaos 14
  parallel.delayed_gloo_threads 37
  parallel.delayed_mpi_threads 20
  parallel.explain_plan_threads 25
  parallel.failing_rank 20
  parallel.gloo 31
  parallel.gloo_kills 60
  parallel.gloo_mesh_pipeline 21
  parallel.gloo_sharded 23
  parallel.kills 35
  parallel.mesh_pipeline 13
  parallel.mesh_pipeline_steps_threads 13
  parallel.mesh_pipeline_threads 13
  parallel.messages_threads 16
  parallel.mpi_failures 15
  parallel.mpi_ranks 27
  parallel.random_models 30
  parallel.random_models_threads 30
  parallel.rendezvous 27
  parallel.ucc 31
  parallel.ucc_chaos 15
  parallel.ucc_kills 38
  parallel.ucc_mesh_pipeline 19
  project.adding 230
  project.apt_closure 13
  project.backends 22
  project.compile_errors 45
  project.from_libtorch 14
  project.mesh_programs 22
  project.package_cmake 30
  project.package_deb 76
  project.package_pkg_config 108
  project.srun 12
  project.torchrun_elastic 60
  samples.guide 117
  samples.meshes 14
  samples.modes 15
  samples.other_world 22
  samples.pipelines 13
  samples.readme 56
  samples.report_page 30
  samples.stop_ranks 51
  samples.strategies 40
  samples.tensor_slices 14
  simulator.attention 34
  simulator.faults 41
  simulator.fences_ops 23
  simulator.fences_optimizers 62
  simulator.gpu_check 34
  simulator.graphs 47
  simulator.ops 16
  tensor.test_same_bits_threads 22)

# Sets TIMEOUT and COST of the tests of the current folder, and the label slow, for scripts/check.sh; called at the end of each (cmake_language(DEFER)).
function(lockstep_limit_tests)
  set(factor 10)
  if(CMAKE_CROSSCOMPILING)  # an emulator runs the tests
    set(factor 200)
  elseif(LOCKSTEP_SANITIZE)
    set(factor 50)
  endif()
  get_property(names DIRECTORY PROPERTY TESTS)
  foreach(name IN LISTS names)
    set(seconds 12)
    list(FIND LOCKSTEP_USUAL_SECONDS ${name} at)
    if(at GREATER_EQUAL 0)
      math(EXPR at "${at} + 1")
      list(GET LOCKSTEP_USUAL_SECONDS ${at} seconds)
    endif()
    math(EXPR limit "${factor} * ${seconds}")
    set_tests_properties(${name} PROPERTIES COST ${seconds} TIMEOUT ${limit})
    if(seconds GREATER_EQUAL 40)
      set_property(TEST ${name} APPEND PROPERTY LABELS slow)
    endif()
  endforeach()
endfunction()
