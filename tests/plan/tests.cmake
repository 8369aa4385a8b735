# The planner: chip files, the cost of published pipelines, fits.
segue_test(plan_files "small;quick" ${CMAKE_CURRENT_LIST_DIR}/plan_files.c)
segue_test(plan_options "small;quick" ${CMAKE_CURRENT_LIST_DIR}/plan_options.c)
segue_test(plan_costs "small;quick" ${CMAKE_CURRENT_LIST_DIR}/plan_costs.c)
segue_test(plan_crossover "small;quick" ${CMAKE_CURRENT_LIST_DIR}/plan_crossover.c)
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(plan_published "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/plan_published.py)
  segue_script(plan_command "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/plan_command.py)
endif()
