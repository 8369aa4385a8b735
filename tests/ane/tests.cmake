# MIL text, weight blobs, rules, the software engine, the private interface against a double.
segue_test(ane_mil_text "small;quick" ane/mil_text.c)
segue_test(ane_weight_blob "small;quick" ane/weight_blob.c)
segue_test(ane_npu_rules "small;quick" ane/npu_rules.c)
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND" AND TARGET segue)
  segue_script(ane_mil_ops "small;golden;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/mil_ops.py)
  segue_script(ane_mil_tools "small;api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/mil_tools.py)
endif()
