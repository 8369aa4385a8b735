segue_script(install_tree "api" sh ${CMAKE_CURRENT_SOURCE_DIR}/install/install.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
