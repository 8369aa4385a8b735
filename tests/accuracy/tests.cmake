# What `ref` computes on the default model, once for all tests that compare with it. The file has some 230 MB.
set(base_logits ${PROJECT_BINARY_DIR}/tests/base_logits)
segue_script(default_base "golden;slow" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/accuracy/base_logits.py $<TARGET_FILE:segue>
  ${PROJECT_SOURCE_DIR} ${base_logits})
segue_script(default_base_remove "golden;slow" ${CMAKE_COMMAND} -E rm -f ${base_logits} ${base_logits}.txt)
set_tests_properties(default_base PROPERTIES FIXTURES_SETUP base_logits COST 900)
set_tests_properties(default_base_remove PROPERTIES FIXTURES_CLEANUP base_logits)
# A test that reads the base logits.
function(segue_needs_base name)
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED base_logits)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "SEGUE_BASE_LOGITS=${base_logits}")
endfunction()

# The file's own storage in `make test`; the others read the text as often again: by hand, `tests/accuracy/accuracy.py
# build/segue . q8_0 q4_k f16`, or as tests with -DSEGUE_SLOW_TESTS=ON.
set(accuracy_storages q4_1)
if(SEGUE_SLOW_TESTS)
  list(APPEND accuracy_storages q8_0 q4_k f16)
endif()
foreach(storage IN LISTS accuracy_storages)
  segue_script(accuracy_${storage} "golden;slow" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/accuracy/accuracy.py $<TARGET_FILE:segue>
    ${PROJECT_SOURCE_DIR} ${storage})
endforeach()
segue_needs_base(accuracy_q4_1)
