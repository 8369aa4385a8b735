# The program build/check (every unit against ref, ref against a restatement) and its levels under CTest.
file(GLOB check_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/check/*.c)
add_executable(check ${check_sources})
target_link_libraries(check PRIVATE segue_static)
set_target_properties(check PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/check/check_kernel.c)
  target_compile_definitions(check PRIVATE CHECK_KERNEL)
endif()
segue_script(check_kernel "check;quick" $<TARGET_FILE:check> --level kernel --quick)
# With sanitizers, plain loops over wide matrices and deep attention take many minutes.
set(small_cases "")
if(SEGUE_SANITIZE)
  foreach(op embed norm linear. rope attend. attendwide conv delta. glu act add scale route rows)
    list(APPEND small_cases --case ${op})
  endforeach()
endif()
segue_script(check_op "check;quick;subset" $<TARGET_FILE:check> --level op --quick ${small_cases})
# With sanitizers a few cases, and one instruction set.
set(gradient_cases --unit cpu:isa=generic,threads=1)
set(handoff_units --without mlx) # mlx_handoff checks those of mlx
if(SEGUE_SANITIZE)
  set(gradient_cases --quick)
  set(handoff_units --unit ref --unit cpu:threads=2 --unit proc:ref) # api_handoffs has ane
endif()
segue_script(check_gradient "check;quick" $<TARGET_FILE:check> --level gradient --unit ref --unit cpu:threads=2 ${gradient_cases})
segue_script(check_handoff "check;quick" $<TARGET_FILE:check> --level handoff --quick ${handoff_units})
# Every ordered pair with a unit in another process and with the one that rounds to fp16; some cases with that one in another
# process.
segue_script(check_handoff_pairs "check;slow" $<TARGET_FILE:check> --level handoff --unit ref --unit cpu:threads=1
  --unit ane:soft,profile=ieee --unit proc:cpu:threads=1)
segue_script(check_handoff_proc "check" $<TARGET_FILE:check> --level handoff --quick --unit ref --unit cpu:threads=1
  --unit proc:ane:soft,profile=ieee)
if(NOT SEGUE_SANITIZE) # it runs all cases five times
  segue_script(check_options "check;quick" ${CMAKE_CURRENT_SOURCE_DIR}/check/options.sh $<TARGET_FILE:check>)
endif()
# Every case of kernels and ops, so that `make test` leaves out check_op. Units whose arithmetic another test checks in all cases
# have some of them: proc computes as ref, ane as its profile ieee (check_op_ieee), mlx has tests of its own (tests/mlx).
segue_script(check_all "check" $<TARGET_FILE:check> --level kernel --level op --seed 2 --without proc --without ane --without mlx)
segue_script(check_op_proc "check" $<TARGET_FILE:check> --level op --quick --unit proc:ref)
# The software NPU: every case in fp16 without the faults of a chip, and some under the limits and arithmetic of each chip, and in
# the profile that refuses what any chip refuses.
segue_script(check_op_ieee "check" $<TARGET_FILE:check> --level op --unit ane:soft,profile=ieee)
set(chips --unit ane:soft)
foreach(chip m1 m2 m3 m4 m5)
  list(APPEND chips --unit ane:soft,profile=${chip})
endforeach()
segue_script(check_op_chips "check" $<TARGET_FILE:check> --level op --quick ${chips})
# Products of the delta rule that an M1 would take as 0 if q were scaled, not the results: 2.5 and 1.4 x their bounds.
segue_script(check_delta_small "check;quick" $<TARGET_FILE:check> --level op --unit ane --seed 8 --case rank.bf16.24
  --case rank.iq4_xs.30)
# Natively on Arm, check_kernel covers neon.
if(CMAKE_SYSTEM_NAME STREQUAL Linux AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT SEGUE_SANITIZE)
  segue_script(check_neon "check;quick" sh ${CMAKE_CURRENT_SOURCE_DIR}/check/neon.sh ${PROJECT_BINARY_DIR})
endif()
