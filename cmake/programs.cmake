# The programs: segue (the command) and, once it stands, check. libcurl (pull), libmicrohttpd (serve) and libedit (line editing in
# chat) are optional; without them those say so.
file(GLOB SEGUE_CLI_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.c ${PROJECT_SOURCE_DIR}/cli/*/*.c)
if(SEGUE_CLI_SOURCES)
  # The commit, looked up at each build and written only when it changed.
  add_custom_target(segue_commit BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/commit.h
    COMMAND ${CMAKE_COMMAND} -DOUT=${PROJECT_BINARY_DIR}/generated/commit.h -DSOURCE=${PROJECT_SOURCE_DIR}
      -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake)
  add_executable(segue ${SEGUE_CLI_SOURCES})
  add_dependencies(segue segue_commit)
  if(SEGUE_SANITIZE) # compiles in a quarter of the time of -O1 and checks no less; the library and tests compute more
    target_compile_options(segue PRIVATE -O0)
  endif()
  target_include_directories(segue PRIVATE ${PROJECT_SOURCE_DIR}/cli ${PROJECT_BINARY_DIR}/generated)
  find_package(ZLIB REQUIRED) # the server's kept answers
  target_link_libraries(segue PRIVATE segue_static ZLIB::ZLIB)
  set(device_targets "")
  if(cuda IN_LIST SEGUE_UNITS)
    string(REGEX MATCHALL "code=[a-z0-9_]+" device_targets "${cuda_targets}")
  endif()
  list(TRANSFORM device_targets REPLACE "code=" "")
  list(JOIN device_targets " " device_targets)
  target_compile_definitions(segue PRIVATE SEGUE_DEVICE_TARGETS="${device_targets}")
  pkg_check_modules(CURL IMPORTED_TARGET libcurl)
  if(CURL_FOUND)
    target_compile_definitions(segue PRIVATE SEGUE_CURL)
    target_link_libraries(segue PRIVATE PkgConfig::CURL)
  endif()
  pkg_check_modules(MICROHTTPD IMPORTED_TARGET libmicrohttpd)
  if(MICROHTTPD_FOUND)
    target_compile_definitions(segue PRIVATE SEGUE_MICROHTTPD)
    target_link_libraries(segue PRIVATE PkgConfig::MICROHTTPD)
  endif()
  pkg_check_modules(EDIT IMPORTED_TARGET libedit)
  if(EDIT_FOUND)
    target_compile_definitions(segue PRIVATE SEGUE_EDIT)
    target_link_libraries(segue PRIVATE PkgConfig::EDIT)
  endif()

  # Man pages and completions, printed by the command itself.
  set(pages ${PROJECT_BINARY_DIR}/pages)
  add_custom_command(OUTPUT ${pages}/done DEPENDS segue ${PROJECT_SOURCE_DIR}/cmake/pages.sh
    COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/pages.sh $<TARGET_FILE:segue> ${pages})
  add_custom_target(segue_pages ALL DEPENDS ${pages}/done)
  install(TARGETS segue RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
  install(FILES ${pages}/completions/segue.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME segue)
  install(FILES ${pages}/completions/_segue DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/completions/segue.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
