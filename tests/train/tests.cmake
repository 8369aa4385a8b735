# Training: gradients and steps against torch's goldens.
# SPDX-License-Identifier: MIT
segue_test(train_goldens "golden;quick" train/goldens.c)
