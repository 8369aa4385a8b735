# The same tests under sanitizers, and the fuzzers, in builds of their own below build/; they are left out of those inner builds.
# Each does one thing at a time: beside each other they leave no processor idle. sanitize_dev and fuzz_all share a build.
# SEGUE_FUZZ_SECONDS is for each fuzzer.
set(SEGUE_FUZZ_SECONDS 10 CACHE STRING "Seconds for each fuzzer in `make test`")
if(NOT SEGUE_SANITIZE AND NOT SEGUE_FAULTS)
  foreach(kind dev tsan)
    segue_script(build_${kind} "sanitize" sh ${CMAKE_CURRENT_SOURCE_DIR}/sanitize/build.sh ${PROJECT_BINARY_DIR} ${kind})
    segue_script(sanitize_${kind} "sanitize" sh ${CMAKE_CURRENT_SOURCE_DIR}/sanitize/sanitize.sh ${PROJECT_BINARY_DIR} ${kind})
    set_tests_properties(build_${kind} PROPERTIES FIXTURES_SETUP build_${kind} TIMEOUT 2400)
    set_tests_properties(sanitize_${kind} PROPERTIES FIXTURES_REQUIRED build_${kind} TIMEOUT 2400)
  endforeach()
  segue_script(fuzz_all "fuzz" sh ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/fuzz.sh ${PROJECT_BINARY_DIR} ${SEGUE_FUZZ_SECONDS})
  set_tests_properties(fuzz_all PROPERTIES FIXTURES_REQUIRED build_dev TIMEOUT 2400)
  set_tests_properties(build_dev PROPERTIES COST 2000)
  set_tests_properties(sanitize_dev PROPERTIES COST 1500)
endif()
