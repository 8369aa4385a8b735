# The programs: segue (the command) and, once it stands, check.
file(GLOB SEGUE_CLI_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.c)
if(SEGUE_CLI_SOURCES)
  add_executable(segue ${SEGUE_CLI_SOURCES})
  target_link_libraries(segue PRIVATE segue_static)
endif()
