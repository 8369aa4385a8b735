# The ane unit's loops for the software engine: each file gets the flags of its instruction set.
set(ane ${PROJECT_SOURCE_DIR}/src/unit/ane/npu)
set(npu_level "")
if(SEGUE_SANITIZE)
  set(npu_level -O2) # unlike those of cpu they compile in a second, and tests of the unit spend their time here
endif()
set_source_files_properties(${ane}/npu_generic.c ${ane}/npu_elements.c ${ane}/npu_move.c ${ane}/npu_reduce.c
  ${ane}/npu_product.c PROPERTIES COMPILE_OPTIONS "${loop_flags};${npu_level}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set_source_files_properties(${ane}/npu_avx2.c PROPERTIES COMPILE_OPTIONS "${avx2_flags};${npu_level}")
  set_source_files_properties(${ane}/npu_avx512.c PROPERTIES COMPILE_OPTIONS "${avx512_flags};${npu_level}")
else()
  list(FILTER SEGUE_SOURCES EXCLUDE REGEX "unit/ane/npu/npu_avx(2|512)\\.c$")
endif()
