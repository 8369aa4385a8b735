# The cpu unit: results independent of threads and batch, states, cancel, packed weights, thread pool.
segue_test(cpu_unit "small;api;quick" cpu/cpu_unit.c)
segue_test(cpu_pool "small;quick" cpu/cpu_pool.c)
segue_test(cpu_pack "small;quick" cpu/cpu_pack.c)
segue_test(cpu_head "small;quick" cpu/cpu_head.c)
segue_test(cpu_cancel "api;quick" cpu/cpu_cancel.c)
if(TARGET segue) # the library is whole
  segue_test(cpu_kv_range "api;quick" cpu/cpu_kv_range.c)
endif()
# The cache of packed weights through the command line; builds with fault injection also test a full disk.
if(TARGET segue AND SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(cpu_cache "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/pack_cache.py $<TARGET_FILE:segue>)
  if(SEGUE_FAULTS)
    segue_script(cpu_cache_faults "fault" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/pack_cache.py $<TARGET_FILE:segue> faults)
  endif()
endif()
# Allocator calls per token, counted by a preloaded library. Not with sanitizers, which replace the allocator.
if(TARGET segue AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT SEGUE_SANITIZE)
  add_library(count_alloc SHARED ${CMAKE_CURRENT_LIST_DIR}/count_alloc.c)
  target_compile_definitions(count_alloc PRIVATE _DEFAULT_SOURCE)
  target_link_libraries(count_alloc PRIVATE ${CMAKE_DL_LIBS})
  segue_script(cpu_token_allocs "api" ${CMAKE_CURRENT_LIST_DIR}/token_allocs.sh $<TARGET_FILE:segue> $<TARGET_FILE:count_alloc>)
endif()
