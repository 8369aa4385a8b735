if(TARGET segue)
  segue_script(quantize "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/quantize/quantize.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama)
endif()
if(TARGET segue)
  segue_script(imatrix "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/quantize/imatrix.py $<TARGET_FILE:segue>)
endif()
