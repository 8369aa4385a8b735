# The public interface: sessions, arguments, promises of the header, exported symbols, layers, call cycles, vocabulary.
if(TARGET segue) # the library is whole
  segue_test(api_sessions "api;quick" ${CMAKE_CURRENT_LIST_DIR}/sessions.c)
  segue_test(api_arguments "api;quick" ${CMAKE_CURRENT_LIST_DIR}/arguments.c)
  segue_test(api_contracts "api;quick" ${CMAKE_CURRENT_LIST_DIR}/contracts.c)
  if(NOT SEGUE_FAULTS) # there the allocations that fail are chosen by the tests themselves
    segue_test(api_allocator "api;quick" ${CMAKE_CURRENT_LIST_DIR}/allocator.c)
  endif()
  segue_test(api_verify "api;quick" ${CMAKE_CURRENT_LIST_DIR}/verify.c)
  segue_test(api_statefiles "api;quick" ${CMAKE_CURRENT_LIST_DIR}/statefiles.c)
  segue_test(api_statedamage "api" ${CMAKE_CURRENT_LIST_DIR}/statedamage.c) # seconds
  segue_test(api_continued "api;golden;quick" ${CMAKE_CURRENT_LIST_DIR}/continued.c)
  segue_test(api_store "api;quick;threads" ${CMAKE_CURRENT_LIST_DIR}/store.c)
  target_link_libraries(api_store PRIVATE Threads::Threads)
  segue_test(api_weights_id "api;quick;threads" ${CMAKE_CURRENT_LIST_DIR}/weights_id.c)
  segue_test(api_checkpoints "api" ${CMAKE_CURRENT_LIST_DIR}/checkpoints.c)
  segue_test(api_handoffs "api;quick;threads" ${CMAKE_CURRENT_LIST_DIR}/handoffs.c)
  target_link_libraries(api_handoffs PRIVATE Threads::Threads)
  segue_test(api_lanes "api;quick;threads" ${CMAKE_CURRENT_LIST_DIR}/lanes.c)
  target_link_libraries(api_lanes PRIVATE Threads::Threads)
  segue_test(api_embeddings "api;golden;quick" ${CMAKE_CURRENT_LIST_DIR}/embeddings.c)
  segue_test(api_scheduler "api;quick;threads" ${CMAKE_CURRENT_LIST_DIR}/scheduler.c)
  target_link_libraries(api_scheduler PRIVATE Threads::Threads)
  segue_test(api_scheduler_memory "api;quick" ${CMAKE_CURRENT_LIST_DIR}/scheduler_memory.c)
  segue_test(api_scheduler_disk "api;quick;threads" ${CMAKE_CURRENT_LIST_DIR}/scheduler_disk.c)
  target_include_directories(api_scheduler_disk PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(api_scheduler_disk PRIVATE Threads::Threads)
  segue_test(api_threads "api;quick;threads" ${CMAKE_CURRENT_LIST_DIR}/threads.c)
  target_link_libraries(api_threads PRIVATE Threads::Threads)
endif()
segue_script(api_layers "api;quick;source" sh ${CMAKE_CURRENT_LIST_DIR}/layers.sh ${PROJECT_SOURCE_DIR})
find_program(SEGUE_ANY_CXX NAMES c++ g++ clang++)
segue_script(api_header "api;quick;source" sh ${CMAKE_CURRENT_LIST_DIR}/header.sh ${CMAKE_C_COMPILER} "${SEGUE_ANY_CXX}"
  ${PROJECT_SOURCE_DIR})
if(NOT SEGUE_SANITIZE AND NOT SEGUE_FAULTS) # those builds hold symbols and switches of their own
  segue_script(api_symbols "api;quick" sh ${CMAKE_CURRENT_LIST_DIR}/symbols.sh ${PROJECT_SOURCE_DIR}
    $<TARGET_FILE:segue_shared> $<TARGET_FILE:segue_static>)
endif()
if(SEGUE_PYTHON)
  segue_script(api_vocabulary "api;quick;source" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/vocabulary.py ${PROJECT_SOURCE_DIR})
  segue_script(api_line_length "api;quick;source" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/line_length.py ${PROJECT_SOURCE_DIR})
  segue_script(api_sizes "api;quick;source" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/sizes.py ${PROJECT_SOURCE_DIR})
  segue_script(api_references "api;quick;source" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/references.py ${PROJECT_SOURCE_DIR})
  if(NOT SEGUE_SANITIZE AND NOT SEGUE_FAULTS) # those builds wrap symbols
    segue_script(api_call_cycles "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/call_cycles.py
      ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
  endif()
endif()
