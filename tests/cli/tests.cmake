# The command: exit codes, JSON fields, one-line errors, help, pages, completions. A tiny model is made on the fly.
if(SEGUE_PYTHON)
  foreach(part pages text run chat eval bench)
    segue_script(cli_${part} "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cli/cli_${part}.py)
  endforeach()
endif()
