# `segue pull` against a server that the test runs itself.
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(pull "api" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/pull/pull.py)
endif()
