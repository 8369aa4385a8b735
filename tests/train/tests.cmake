# Training: gradients and steps against torch's goldens.
# SPDX-License-Identifier: MIT
segue_test(train_goldens "golden;quick" train/goldens.c)
segue_test(train_products "quick" train/products.c)
if(TARGET segue)
  segue_script(train_command "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/train/train_command.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama)
  segue_script(train_grpo "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/train/train_grpo.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama)
  segue_script(train_delta_memory "slow" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/train/train_delta_memory.py
    $<TARGET_FILE:segue> ${PROJECT_SOURCE_DIR}/tests/golden/tiny/qwen3_5)
  segue_script(train_formats "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/train/train_formats.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama)
  segue_script(train_bench "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/train/train_bench.py $<TARGET_FILE:segue>)
  segue_script(train_ane "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/train/train_ane.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny)
  segue_script(train_kills "golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/train/train_kills.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama)
endif()
