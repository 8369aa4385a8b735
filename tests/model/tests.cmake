# Families, naming conventions and adapters against transformers' goldens; refusals of bad configurations.
# SPDX-License-Identifier: MIT
segue_test(model_families "golden;quick" model/families_golden.c model/tiny.c)
segue_test(model_refusals "small;quick" model/refusals.c model/tiny.c)

segue_script(model_families_large "golden" sh ${CMAKE_CURRENT_LIST_DIR}/large.sh $<TARGET_FILE:model_families>
  ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/tiny-large)
