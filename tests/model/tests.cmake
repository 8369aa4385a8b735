# Families, naming conventions and adapters against transformers' goldens; refusals of bad configurations.
# SPDX-License-Identifier: MIT
if(EXISTS ${PROJECT_SOURCE_DIR}/src/text/jinja.h)
segue_test(model_families "golden;quick" model/families_golden.c model/tiny.c)
segue_test(model_refusals "small;quick" model/refusals.c model/tiny.c)
endif()
