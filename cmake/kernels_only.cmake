# Builds only the kernel level of `check`: the kernels and their dependencies, statically linked, so that a cross build
# needs no more than a C library and runs in an emulator (tests/check/neon.sh).
file(GLOB SEGUE_SOURCES ${PROJECT_SOURCE_DIR}/src/unit/cpu/kernels/k_*.c ${PROJECT_SOURCE_DIR}/src/unit/cpu/dispatch.c
     ${PROJECT_SOURCE_DIR}/src/unit/cpu/cpu_gemm.c)
include(cmake/cpu_unit.cmake)
set(base ${PROJECT_SOURCE_DIR}/src/base)
set(check ${PROJECT_SOURCE_DIR}/tests/check)
file(GLOB kernel_checks ${check}/check_kernel*.c)
add_executable(check ${SEGUE_SOURCES} ${base}/clock.c ${base}/err.c ${base}/mem.c
  ${kernel_checks} ${check}/checkmain.c ${check}/checkrandom.c)
target_include_directories(check PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(check PRIVATE CHECK_KERNEL CHECK_KERNEL_ONLY)
target_link_libraries(check PRIVATE segue_flags m)
target_link_options(check PRIVATE -static)
