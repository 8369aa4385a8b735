# Failing allocations and writes, changed bits; only where the hooks are built in.
if(SEGUE_FAULTS AND TARGET segue)
  segue_test(fault_engine "fault" ${CMAKE_CURRENT_LIST_DIR}/engine_faults.c)
  # What malloc keeps for each thread would count as leaked.
  set_property(TEST fault_engine APPEND PROPERTY ENVIRONMENT "GLIBC_TUNABLES=glibc.malloc.tcache_count=0")
  if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
    segue_script(fault_verify "fault" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/verify_requests.py)
  endif()
endif()
