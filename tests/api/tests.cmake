# The public interface: every way through a session, every argument, what the library exports, how the tree points.
if(TARGET segue) # the library is whole
  segue_test(api_sessions "api;quick" ${CMAKE_CURRENT_LIST_DIR}/sessions.c)
  segue_test(api_arguments "api;quick" ${CMAKE_CURRENT_LIST_DIR}/arguments.c)
endif()
add_test(NAME api_layers COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/layers.sh ${PROJECT_SOURCE_DIR})
find_program(SEGUE_ANY_CXX NAMES c++ g++ clang++)
add_test(NAME api_header COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/header.sh ${CMAKE_C_COMPILER} "${SEGUE_ANY_CXX}"
  ${PROJECT_SOURCE_DIR})
add_test(NAME api_symbols COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/symbols.sh ${PROJECT_SOURCE_DIR}
  $<TARGET_FILE:segue_shared> $<TARGET_FILE:segue_static>)
set_tests_properties(api_layers api_header api_symbols PROPERTIES LABELS "api;quick" SKIP_RETURN_CODE 77)
if(SEGUE_SANITIZE OR SEGUE_FAULTS) # their own symbols and switches are in the library then
  set_tests_properties(api_symbols PROPERTIES DISABLED TRUE)
endif()
