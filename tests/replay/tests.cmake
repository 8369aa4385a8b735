# run --record and segue replay.
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(replay "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/replay/replay.py)
  set_tests_properties(replay PROPERTIES ENVIRONMENT "${SEGUE_TEST_ENVIRONMENT};PYTHONPATH=${CMAKE_CURRENT_SOURCE_DIR}/cli")
endif()
