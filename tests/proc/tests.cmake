# The unit proc: a child of the command answers as the unit itself does, dies with its parent, and is told by its pid.
segue_script(proc_command "cli;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/proc_command.py)
