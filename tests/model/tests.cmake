# Families, naming conventions and adapters against transformers' goldens; refusals of bad configurations.
# SPDX-License-Identifier: MIT
segue_test(model_families "golden;quick" model/families_golden.c model/tiny.c)
