# SPDX-License-Identifier: MIT
add_executable(tok_diff ${CMAKE_CURRENT_LIST_DIR}/tok_diff.c)
target_link_libraries(tok_diff PRIVATE segue_static)
