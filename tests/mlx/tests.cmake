# The unit mlx. Without MLX in the build these tests are skipped with the reason.
segue_script(mlx_op "mlx;check" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh
  $<TARGET_FILE:check> --level op --unit mlx:cpu --quick)
segue_script(mlx_op_bf16 "mlx;check" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh
  $<TARGET_FILE:check> --level op --unit mlx:cpu,type=bf16 --quick)
# A part: MLX's fp16 products are slow on the CPU. Of the kinds whose arithmetic differs by type, and of results beyond fp16.
segue_script(mlx_op_f16 "mlx;check" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh sh ${CMAKE_CURRENT_LIST_DIR}/op_f16.sh
  $<TARGET_FILE:check>)
segue_script(mlx_handoff "mlx;check" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh $<TARGET_FILE:check> --level handoff --quick
  --unit ref --unit cpu:threads=1 --unit ane:soft,profile=ieee --unit mlx:cpu)
if(TARGET segue)
  segue_script(mlx_copied "mlx;check" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh sh ${CMAKE_CURRENT_LIST_DIR}/copied.sh
    $<TARGET_FILE:check> $<TARGET_FILE:segue> ${PROJECT_SOURCE_DIR}/tests/golden/tiny/qwen3_5)
  segue_script(mlx_converted "mlx;quick" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh sh ${CMAKE_CURRENT_LIST_DIR}/converted.sh
    $<TARGET_FILE:segue> ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama/model-q8_0.gguf)
  segue_script(mlx_tokens "mlx" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh sh ${CMAKE_CURRENT_LIST_DIR}/tokens.sh
    $<TARGET_FILE:segue>)
  segue_script(mlx_families "mlx" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh sh ${CMAKE_CURRENT_LIST_DIR}/families.sh
    $<TARGET_FILE:segue> ${PROJECT_SOURCE_DIR}/tests/golden/tiny)
  segue_script(mlx_pipelines "mlx" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh ${SEGUE_PYTHON}
    ${CMAKE_CURRENT_LIST_DIR}/mlx_pipelines.py $<TARGET_FILE:segue> ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny/qwen3_5)
endif()
if(mlx IN_LIST SEGUE_UNITS)
  segue_test(mlx_repack "mlx;small;quick" ${CMAKE_CURRENT_LIST_DIR}/mlx_repack.c)
  segue_test(mlx_types "mlx;quick" ${CMAKE_CURRENT_LIST_DIR}/mlx_types.c)
  add_executable(mlx_golden ${CMAKE_CURRENT_LIST_DIR}/mlx_golden.c model/tiny.c)
  target_link_libraries(mlx_golden PRIVATE segue_static)
  target_include_directories(mlx_golden PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
  target_compile_definitions(mlx_golden PRIVATE SEGUE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_executable(mlx_decode ${CMAKE_CURRENT_LIST_DIR}/mlx_decode.c)
  target_link_libraries(mlx_decode PRIVATE segue_static)
  add_executable(mlx_dispatches ${CMAKE_CURRENT_LIST_DIR}/mlx_dispatches.c)
  target_link_libraries(mlx_dispatches PRIVATE segue_static)
  segue_script(mlx_dispatches "mlx;golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/mlx_dispatches.py
    $<TARGET_FILE:mlx_dispatches> ${PROJECT_SOURCE_DIR}/tests/golden/tiny)
  segue_script(mlx_lm "mlx;golden" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/mlx_lm_golden.py $<TARGET_FILE:mlx_golden>
    ${PROJECT_SOURCE_DIR}/tests/golden/tiny)
  segue_test(mlx_ahead "mlx;quick" ${CMAKE_CURRENT_LIST_DIR}/mlx_ahead.c)
  segue_test(mlx_passed "mlx;quick" ${CMAKE_CURRENT_LIST_DIR}/mlx_passed.c)
else()
  foreach(name mlx_repack mlx_types mlx_ahead mlx_passed mlx_lm mlx_dispatches)
    segue_script(${name} "mlx;quick" sh ${CMAKE_CURRENT_LIST_DIR}/present.sh true)
  endforeach()
  foreach(name mlx_repack mlx_types mlx_ahead mlx_passed mlx_lm mlx_dispatches mlx_op mlx_op_bf16 mlx_op_f16 mlx_handoff mlx_copied mlx_converted mlx_tokens
      mlx_families mlx_pipelines)
    if(TEST ${name})
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "SEGUE_NO_MLX=1")
    endif()
  endforeach()
endif()
