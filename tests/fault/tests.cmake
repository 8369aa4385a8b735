# Failing allocations and writes; only where the hooks are built in.
if(SEGUE_FAULTS AND TARGET segue)
  segue_test(fault_engine "fault" ${CMAKE_CURRENT_LIST_DIR}/engine_faults.c)
endif()
