# The unit proc: a child of the command answers as the unit itself does, dies with its parent, and is told by its pid.
segue_script(proc_command "cli;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/proc_command.py)
# Killed at random moments: a few in `quick`, two hundred over six pairs otherwise.
segue_test(proc_loss "api;quick;subset" ${CMAKE_CURRENT_LIST_DIR}/proc_loss.c)
segue_script(proc_loss_often "api;slow" $<TARGET_FILE:proc_loss> 34)
# A process that misbehaves in every way.
add_executable(proc_double ${CMAKE_CURRENT_LIST_DIR}/proc_double.c)
target_link_libraries(proc_double PRIVATE segue_static)
segue_test(proc_hostile "api;quick;subset" ${CMAKE_CURRENT_LIST_DIR}/proc_hostile.c)
add_dependencies(proc_hostile proc_double)
segue_script(proc_hostile_all "api;slow" $<TARGET_FILE:proc_hostile> all)
