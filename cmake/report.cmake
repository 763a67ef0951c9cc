# Prints the table at the end of configuring: the parts, whether each is built, and why not.

# Fills the text up to a column with spaces, with at least one.
function(lockstep_pad variable column)
  string(LENGTH "${${variable}} " length)
  math(EXPR missing "${column} - ${length}")
  if(missing LESS 0)
    set(missing 0)
  endif()
  string(REPEAT " " ${missing} spaces)
  set(${variable} "${${variable}} ${spaces}" PARENT_SCOPE)
endfunction()

function(lockstep_report part state why)
  set(line "  ${part}")
  lockstep_pad(line 24)
  string(APPEND line "${state}")
  lockstep_pad(line 29)
  set_property(GLOBAL APPEND_STRING PROPERTY LOCKSTEP_REPORT "${line}${why}\n")
endfunction()

function(lockstep_print_report)
  get_property(report GLOBAL PROPERTY LOCKSTEP_REPORT)
  message(STATUS "Lockstep ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}:\n${report}")
endfunction()
