# Fuzzers, one program for each tests/fuzz/fuzz_*.c: clang's libFuzzer. They need the library compiled with coverage, which no
# other program minds; loops that no fuzzer reaches go without.
if(SEGUE_FUZZ)
  target_compile_options(segue_objects PRIVATE -fsanitize=fuzzer-no-link)
  file(GLOB_RECURSE loops ${PROJECT_SOURCE_DIR}/src/unit/ref/*.c ${PROJECT_SOURCE_DIR}/src/unit/cpu/*.c
    ${PROJECT_SOURCE_DIR}/src/unit/ane/npu/*.c)
  set_property(SOURCE ${loops} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=fuzzer-no-link)
  add_custom_target(fuzzers)
  file(GLOB targets CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
  foreach(source IN LISTS targets)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    add_dependencies(fuzzers ${name})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzzers)
    target_link_libraries(${name} PRIVATE segue_static)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cli) # fuzz_reply includes sources of the command
    target_compile_definitions(${name} PRIVATE SEGUE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_compile_options(${name} PRIVATE -O1 -fsanitize=fuzzer-no-link)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
