# `segue pull` against a server that the test runs itself.
if(SEGUE_PYTHON)
  segue_script(pull "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/pull/pull.py)
endif()
