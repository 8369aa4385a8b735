# The unit cuda: where nvcc is found its kernels are compiled, one fat binary per kernel file (sm_80, sm_90a and PTX), and
# included in the library as bytes; elsewhere the unit is left out. Only the CUDA compiler is needed, no library of CUDA.
# The assembler includes the bytes (.incbin): compiled as C arrays, 18 MB take minutes and gigabytes of memory.
option(SEGUE_CUDA "Build the unit cuda where nvcc is found" ON)
find_program(SEGUE_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
mark_as_advanced(SEGUE_NVCC)
set(cuda_dir ${PROJECT_SOURCE_DIR}/src/unit/cuda)
if(SEGUE_CUDA AND SEGUE_NVCC)
  list(APPEND SEGUE_UNITS cuda)
  # Code for sm_80 also runs on 8.6 and 8.9; the driver compiles the PTX on later GPUs at the first start. Each further target
  # doubles the time of compilation of the kernels, so they are an option, for packages.
  option(SEGUE_CUDA_ALL "Compile the kernels for sm_86, sm_89, sm_100 and sm_120 too" OFF)
  set(cuda_targets -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a
    -gencode arch=compute_80,code=compute_80)
  if(SEGUE_CUDA_ALL)
    foreach(arch 86 89 100 120)
      list(APPEND cuda_targets -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
  endif()
  option(SEGUE_CUDA_ONE "Compile the kernels for sm_90a only: for tests on machines without a GPU" OFF)
  if(SEGUE_CUDA_ONE)
    set(cuda_targets -gencode arch=compute_90a,code=sm_90a)
  endif()
  option(SEGUE_CUDA_QUICK "Compile the kernels without optimization, in a fraction of the time: where no GPU runs them" OFF)
  set(cuda_level "")
  if(SEGUE_CUDA_QUICK)
    execute_process(COMMAND ${SEGUE_NVCC} --help OUTPUT_VARIABLE nvcc_help ERROR_QUIET)
    if(nvcc_help MATCHES "Ofast-compile") # since CUDA 12.9
      set(cuda_level --Ofast-compile=max)
    else()
      set(cuda_level -Xcicc -O1 -Xptxas -O0)
    endif()
  endif()
  set(SEGUE_CUDA_TARGETS "" CACHE STRING "What kernels are compiled for, as nvcc's arguments; empty: SEGUE_CUDA_ALL decides")
  if(SEGUE_CUDA_TARGETS)
    set(cuda_targets ${SEGUE_CUDA_TARGETS})
  endif()
  file(GLOB cuda_kernels CONFIGURE_DEPENDS ${cuda_dir}/kernels/k_*.cu ${cuda_dir}/kernels/packed/k_*.cu
    ${cuda_dir}/kernels/sample/k_*.cu)
  # Loaded only to train, hence in a list of their own.
  file(GLOB cuda_train_kernels CONFIGURE_DEPENDS ${cuda_dir}/kernels/train/k_train_*.cu)
  file(GLOB cuda_headers CONFIGURE_DEPENDS ${cuda_dir}/kernels/include/*.cuh ${cuda_dir}/kernels/include/*/*.*h
    ${cuda_dir}/kernels/sample/*.*h ${cuda_dir}/kernels/train/*.*h)
  list(APPEND cuda_headers ${PROJECT_SOURCE_DIR}/src/unit/sample_math.h)
  set(cuda_out ${PROJECT_BINARY_DIR}/generated/unit/cuda)
  file(MAKE_DIRECTORY ${cuda_out})
  set(cuda_images [[
/* Generated: the fat binaries of all kernels. */
#include "unit/cuda/driver/images.h"
#define IMAGE(name, file) \
  extern const unsigned char name[]; \
  __asm__(".pushsection .rodata\n.balign 16\n.globl " #name "\n.hidden " #name "\n" #name ":\n.incbin \"" file "\"\n.popsection");
]])
  foreach(list cuda cuda_train)
    set(${list}_list "")
    set(${list}_names "")
  endforeach()
  set(cuda_fatbins "")
  foreach(source IN LISTS cuda_kernels cuda_train_kernels)
    get_filename_component(name ${source} NAME_WE)
    set(compile ${SEGUE_NVCC} -std=c++17 -O3 --fatbin ${cuda_level} ${cuda_targets} -I ${cuda_dir}/kernels/include ${source}
      -o ${cuda_out}/${name}.fatbin)
    if(SEGUE_CUDA_QUICK)
      string(JOIN "|" words ${compile})
      set(compile ${CMAKE_COMMAND} -DCOMMAND=${words} -P ${PROJECT_SOURCE_DIR}/cmake/compile_kernel.cmake)
    endif()
    add_custom_command(OUTPUT ${cuda_out}/${name}.fatbin COMMAND ${compile}
      DEPENDS ${source} ${cuda_headers} VERBATIM COMMENT "Compiling kernels ${name}.cu")
    list(APPEND cuda_fatbins ${cuda_out}/${name}.fatbin)
    string(APPEND cuda_images "IMAGE(cu_image_${name}, \"${cuda_out}/${name}.fatbin\")\n")
    set(list cuda)
    if(source IN_LIST cuda_train_kernels)
      set(list cuda_train)
    endif()
    string(APPEND ${list}_list "cu_image_${name}, ")
    string(APPEND ${list}_names "\"${name}\", ")
  endforeach()
  string(APPEND cuda_images "const void *const cu_images[] = {${cuda_list}0};\n")
  string(APPEND cuda_images "const char *const cu_image_names[] = {${cuda_names}0};\n")
  string(APPEND cuda_images "const void *const cu_train_images[] = {${cuda_train_list}0};\n")
  string(APPEND cuda_images "const char *const cu_train_image_names[] = {${cuda_train_names}0};\n")
  file(CONFIGURE OUTPUT ${cuda_out}/images.c CONTENT "${cuda_images}" @ONLY)
  set_source_files_properties(${cuda_out}/images.c PROPERTIES OBJECT_DEPENDS "${cuda_fatbins}")
  list(APPEND SEGUE_SOURCES ${cuda_out}/images.c)
else()
  message(STATUS "nvcc not found: the unit cuda is not built")
  list(FILTER SEGUE_SOURCES EXCLUDE REGEX "/src/unit/cuda/")
endif()
