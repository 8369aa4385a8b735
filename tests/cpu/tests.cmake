# The cpu unit by itself: equal results whatever the threads, the batch and the chunking; states; cancel; its pool.
segue_test(cpu_unit "small;api;quick" cpu/cpu_unit.c)
segue_test(cpu_pool "small;quick" cpu/cpu_pool.c)
