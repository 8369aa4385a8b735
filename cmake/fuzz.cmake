# Fuzz targets: one program for each tests/fuzz/fuzz_*.c, clang's libFuzzer with address and undefined-behaviour checks.
target_compile_options(segue_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
target_link_options(segue_flags INTERFACE -fsanitize=address,undefined)
file(GLOB targets CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
foreach(source IN LISTS targets)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE segue_static)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cli) # fuzz_reply includes sources of the command
  target_compile_definitions(${name} PRIVATE SEGUE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endforeach()
