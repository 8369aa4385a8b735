# Chat templates. template_diff.py compares with Python's jinja2: generated templates (SEGUE_TEMPLATE_CASES of them, 6,000
# by default) and every template under SEGUE_LLAMA_SOURCE/models/templates.
# SPDX-License-Identifier: MIT
add_executable(template_render ${CMAKE_CURRENT_LIST_DIR}/template_render.c)
target_link_libraries(template_render PRIVATE segue_static)
segue_script(template_diff "text;golden" ${CMAKE_CURRENT_LIST_DIR}/template_diff.sh "${SEGUE_PYTHON}"
  $<TARGET_FILE:template_render>)
segue_test(template_limits "text;quick" ${CMAKE_CURRENT_LIST_DIR}/template_limits.c)
if(NOT SEGUE_SANITIZE) # their frames are ten times as large
  segue_script(template_limits_stack "text;quick" sh -c "ulimit -s 128 && exec $<TARGET_FILE:template_limits>")
  segue_script(small_json_stack "small;quick" sh -c "ulimit -s 128 && exec $<TARGET_FILE:small_json>")
endif()
segue_test(template_golden "text;golden;quick" ${CMAKE_CURRENT_LIST_DIR}/template_golden.c)
if(SEGUE_FAULTS)
  segue_test(template_faults "fault" ${CMAKE_CURRENT_LIST_DIR}/template_faults.c)
endif()
