# The command: exit codes, JSON fields, one-line errors, help, pages, completions. A tiny model is made on the fly.
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  foreach(part pages text interface names coded chat terminal eval run bench state pipelines owner escapes limits)
    segue_script(cli_${part} "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cli/cli_${part}.py)
  endforeach()
  if(TARGET segue_shared AND NOT SEGUE_SANITIZE AND NOT SEGUE_FAULTS) # a program of a reader is linked with the library
    segue_script(cli_documents "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cli/cli_documents.py ${CMAKE_C_COMPILER}
      $<TARGET_FILE:segue_shared>)
  endif()
  set_tests_properties(cli_run cli_bench cli_pipelines PROPERTIES LABELS api)   # the long ones
endif()
