# The same tests under sanitizers, and the fuzzers, each in a build of its own below build/. They are left out of those
# inner builds. Each does one thing at a time: beside each other they leave no processor idle. SEGUE_FUZZ_SECONDS is for each
# fuzzer.
set(SEGUE_FUZZ_SECONDS 10 CACHE STRING "Seconds for each fuzzer in `make test`")
if(NOT SEGUE_SANITIZE AND NOT SEGUE_FUZZ AND NOT SEGUE_FAULTS)
  foreach(kind dev tsan)
    segue_script(sanitize_${kind} "sanitize" sh ${CMAKE_CURRENT_SOURCE_DIR}/sanitize/sanitize.sh ${PROJECT_BINARY_DIR} ${kind})
    set_tests_properties(sanitize_${kind} PROPERTIES TIMEOUT 2400)
  endforeach()
  segue_script(fuzz_all "fuzz" sh ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/fuzz.sh ${PROJECT_BINARY_DIR}/fuzz ${SEGUE_FUZZ_SECONDS})
  set_tests_properties(fuzz_all PROPERTIES TIMEOUT 2400)
endif()
