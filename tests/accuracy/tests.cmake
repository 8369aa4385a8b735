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
