# The unit cuda without a GPU, over a stub driver (a libcuda.so.1 built here), and the targets of the compiled kernels.
if(cuda IN_LIST SEGUE_UNITS)
  set(cuda_stubs "")
  foreach(kind whole short partless)
    add_library(cuda_stub_${kind} SHARED ${CMAKE_CURRENT_LIST_DIR}/stub_driver.c)
    set_target_properties(cuda_stub_${kind} PROPERTIES OUTPUT_NAME cuda SOVERSION 1 C_VISIBILITY_PRESET default
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/stub_${kind})
  endforeach()
  add_library(cuda_stub_nvml SHARED ${CMAKE_CURRENT_LIST_DIR}/stub_nvml.c)
  set_target_properties(cuda_stub_nvml PROPERTIES OUTPUT_NAME nvidia-ml SOVERSION 1 C_VISIBILITY_PRESET default
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/stub_whole)
  target_compile_definitions(cuda_stub_short PRIVATE STUB_SHORT)
  target_compile_definitions(cuda_stub_partless PRIVATE STUB_PARTLESS)
  # The training kernels compiled for the host, behind the stub driver.
  include(CheckLanguage)
  check_language(CXX)
  if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
    add_library(cuda_stub_emulated SHARED ${CMAKE_CURRENT_LIST_DIR}/stub_driver.c ${CMAKE_CURRENT_LIST_DIR}/emulate/emulate.cpp
      ${cuda_train_kernels})
    set_source_files_properties(${cuda_train_kernels} PROPERTIES LANGUAGE CXX)
    target_include_directories(cuda_stub_emulated PRIVATE ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_LIST_DIR}/emulate)
    target_compile_options(cuda_stub_emulated PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-std=c++17;-O2;-xc++;-include;${CMAKE_CURRENT_LIST_DIR}/emulate/cuda_shim.h>)
    set_target_properties(cuda_stub_emulated PROPERTIES OUTPUT_NAME cuda SOVERSION 1 C_VISIBILITY_PRESET default
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/stub_emulated)
    segue_script(cuda_gradient "check" $<TARGET_FILE:check> --level gradient --unit cuda:0 --quick) # half a minute
    segue_script(cuda_gradient_bf16 "check" $<TARGET_FILE:check> --level gradient --unit cuda:0,products=3 --case even)
    set_property(TEST cuda_gradient_bf16 APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/stub_emulated")
    set_property(TEST cuda_gradient APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/stub_emulated")
  endif()
  segue_test(cuda_stub "small;fault;quick" ${CMAKE_CURRENT_LIST_DIR}/cuda_stub.c)
  add_dependencies(cuda_stub cuda_stub_whole cuda_stub_short cuda_stub_partless cuda_stub_nvml)
  segue_test(cuda_packed "small;quick" ${CMAKE_CURRENT_LIST_DIR}/cuda_packed.c)
  segue_test(cuda_cluster "small;fault;quick" ${CMAKE_CURRENT_LIST_DIR}/cuda_cluster.c)
  add_dependencies(cuda_cluster cuda_stub_whole)
  set_property(TEST cuda_cluster APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/stub_whole")
  foreach(what cards depth fault forks gate graphs sample states train vocab)
    segue_test(cuda_${what} "small;quick" ${CMAKE_CURRENT_LIST_DIR}/cuda_${what}.c)
    add_dependencies(cuda_${what} cuda_stub_whole)
    set_property(TEST cuda_${what} APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/stub_whole")
  endforeach()
  segue_script(cuda_stub_lacks_one "small;fault;quick" $<TARGET_FILE:cuda_stub>)
  segue_script(cuda_stub_partless "small;fault;quick" $<TARGET_FILE:cuda_stub>)
  set_property(TEST cuda_stub_partless APPEND PROPERTY ENVIRONMENT
    "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/stub_partless" "SEGUE_STUB_PARTLESS=1")
  set_property(TEST cuda_stub APPEND PROPERTY ENVIRONMENT
    "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/stub_whole")
  set_property(TEST cuda_stub_lacks_one APPEND PROPERTY ENVIRONMENT
    "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/stub_short" "SEGUE_STUB_SHORT=1")
  get_filename_component(nvcc_folder ${SEGUE_NVCC} DIRECTORY)
  if(EXISTS ${nvcc_folder}/cuobjdump) # a tool that not every installation of the compiler has
    segue_script(cuda_images "small;quick" sh ${CMAKE_CURRENT_LIST_DIR}/images.sh ${nvcc_folder}/cuobjdump
      ${PROJECT_BINARY_DIR}/generated/unit/cuda "${cuda_targets}")
  endif()
  segue_script(cuda_sanitize "check;quick" sh ${CMAKE_CURRENT_LIST_DIR}/sanitize_says.sh $<TARGET_FILE:check>)
  if(TARGET segue)
    segue_script(cuda_absent "small;quick" sh ${CMAKE_CURRENT_LIST_DIR}/absent.sh $<TARGET_FILE:segue>
      ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama)
    if(SEGUE_PYTHON)
      segue_script(cuda_days "small;fault;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/stub_days.py
        $<TARGET_FILE:segue> ${PROJECT_BINARY_DIR}/stub_whole ${cuda_dir}/driver/driver.h
        ${PROJECT_SOURCE_DIR}/tests/golden/tiny/llama)
      segue_script(cuda_on_gpu "check;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/on_gpu_says.py ${PROJECT_BINARY_DIR}
        ${PROJECT_BINARY_DIR}/stub_whole)
    endif()
  endif()
endif()
