# cmake -DCOMMAND=WORD|WORD... -P compile_kernel.cmake: runs nvcc without the advice of ptxas on performance ("ptxas info"), which says
# nothing of a build that is not optimized (SEGUE_CUDA_QUICK). Warnings and errors stay. SPDX-License-Identifier: MIT
string(REPLACE "|" ";" COMMAND "${COMMAND}")
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
string(REGEX REPLACE "ptxas info[^\n]*\n" "" text "${out}${err}")
string(STRIP "${text}" text)
if(text)
  message("${text}")
endif()
if(NOT code EQUAL 0)
  message(FATAL_ERROR "nvcc: exit ${code}")
endif()
