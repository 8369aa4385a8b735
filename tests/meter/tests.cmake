# Energy: RAPL on a made-up powercap tree, logs of powermetrics and asitop, phases.
segue_test(meter_rapl "small;quick" meter/rapl.c)
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(meter_phases "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/meter/meter_phases.py)
  set_tests_properties(meter_phases PROPERTIES ENVIRONMENT "${SEGUE_TEST_ENVIRONMENT};PYTHONPATH=${CMAKE_CURRENT_SOURCE_DIR}/cli")
endif()
