# The public interface: every way through a session, every argument, what the library exports, how the tree points.
if(TARGET segue) # the library is whole
  segue_test(api_sessions "api;quick" ${CMAKE_CURRENT_LIST_DIR}/sessions.c)
endif()
