# The library: every source under src/, less the units that are switched off. One list of units is generated; no
# other file names them.
set(SEGUE_UNITS ref cpu proc ane)     # folders of src/unit that are built in, in the planner's order of last resort

file(GLOB_RECURSE SEGUE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.c)
include(cmake/cuda_unit.cmake)
include(cmake/mlx_unit.cmake)
set(unit_lines "")
foreach(unit IN LISTS SEGUE_UNITS)
  string(APPEND unit_lines "SG_UNIT(${unit})\n")
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/unit_list.h CONTENT "${unit_lines}" @ONLY)

include(cmake/chips.cmake)
include(cmake/cpu_unit.cmake)
include(cmake/ane_unit.cmake)
add_library(segue_objects OBJECT ${SEGUE_SOURCES})
set_target_properties(segue_objects PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
target_include_directories(segue_objects PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
  PRIVATE ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(segue_objects PUBLIC segue_flags PkgConfig::DEPS Threads::Threads m ${CMAKE_DL_LIBS})

add_library(segue_static STATIC $<TARGET_OBJECTS:segue_objects> ${mlx_objects})
add_library(segue_shared SHARED $<TARGET_OBJECTS:segue_objects> ${mlx_objects})
foreach(lib segue_static segue_shared)
  set_target_properties(${lib} PROPERTIES OUTPUT_NAME segue VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(${lib} PUBLIC ${PROJECT_SOURCE_DIR}/include INTERFACE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${lib} PUBLIC segue_flags PkgConfig::DEPS Threads::Threads m ${CMAKE_DL_LIBS} ${mlx_libraries})
endforeach()
if(mlx_exports)
  target_link_options(segue_shared PRIVATE ${mlx_exports})
endif()
