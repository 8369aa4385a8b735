# Write SEGUE_COMMIT into OUT: the short commit of SOURCE, with + when files differ from it; "unknown" outside git.
execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=10 --exclude=* --dirty=+
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT commit)
  set(commit unknown)
endif()
set(text "#define SEGUE_COMMIT \"${commit}\"\n")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${OUT} "${text}")
endif()
