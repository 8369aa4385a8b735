# MIL text, weight blobs, rules, the software engine, the private interface against a double.
segue_test(ane_mil_text "small;quick" ane/mil_text.c)
segue_test(ane_weight_blob "small;quick" ane/weight_blob.c)
segue_test(ane_npu_rules "small;quick" ane/npu_rules.c)
