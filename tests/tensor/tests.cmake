# Archives and number formats: one program per file.
# SPDX-License-Identifier: MIT
segue_test(tensor_blocks "golden;quick" tensor/blocks_golden.c)
segue_script(tensor_iquant_tables "golden;quick" ${CMAKE_CURRENT_LIST_DIR}/iquant_tables.sh "${SEGUE_PYTHON}")
segue_test(tensor_fp8 "golden;quick" tensor/fp8_golden.c)
segue_test(tensor_coded "golden;quick" tensor/coded_golden.c)
segue_test(tensor_archives "golden;quick" tensor/archive_golden.c)
segue_test(tensor_hostile "golden;quick" tensor/archive_hostile.c)
if(SEGUE_FAULTS)
  segue_test(tensor_faults "fault" tensor/archive_faults.c)
endif()
