# The cpu unit by itself: equal results whatever the threads, the batch and the chunking; states; cancel; its pool.
segue_test(cpu_unit "small;api;quick" cpu/cpu_unit.c)
segue_test(cpu_pool "small;quick" cpu/cpu_pool.c)
segue_test(cpu_pack "small;quick" cpu/cpu_pack.c)
# Packed weights in the cache folder; where the hooks are built in, with a full disk.
if(TARGET segue AND SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(cpu_cache "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/pack_cache.py $<TARGET_FILE:segue>)
  if(SEGUE_FAULTS)
    segue_script(cpu_cache_faults "fault" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/pack_cache.py $<TARGET_FILE:segue> faults)
  endif()
endif()
