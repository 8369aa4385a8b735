foreach(storage q4_1 q8_0 q4_k f16)
  segue_script(accuracy_${storage} "golden;slow" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/accuracy/accuracy.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR} ${storage})
endforeach()
