# Install: command, library, header, segue.pc, CMake package file, man pages, completions. Man pages and completions are
# printed by the command from its own table, so they cannot drift.
file(RELATIVE_PATH segue_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)   # from the .pc file to the prefix
string(REGEX REPLACE "/$" "" segue_up "${segue_up}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/segue.pc.in ${PROJECT_BINARY_DIR}/segue.pc @ONLY)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/segueConfigVersion.cmake COMPATIBILITY SameMajorVersion)

install(TARGETS segue_shared segue_static
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/segue.h ${PROJECT_SOURCE_DIR}/include/segue_train.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_BINARY_DIR}/segue.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_file(${PROJECT_SOURCE_DIR}/cmake/segueConfig.cmake.in ${PROJECT_BINARY_DIR}/segueConfig.cmake @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/segueConfig.cmake ${PROJECT_BINARY_DIR}/segueConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/segue)

