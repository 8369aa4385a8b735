if(TARGET segue)
  segue_script(damage "api" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/damage/damage.py $<TARGET_FILE:segue>)
endif()
