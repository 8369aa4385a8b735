segue_test(default_model "golden;slow" ${CMAKE_CURRENT_SOURCE_DIR}/default/default_model.c)
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(default_ane "golden;slow" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/default/ane_default.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR})
  set_tests_properties(default_ane PROPERTIES TIMEOUT 1200)
endif()
if(SEGUE_SLOW_TESTS AND SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(default_handoff "golden;slow" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/default/handoff.py $<TARGET_FILE:segue>)
endif()
