# SPDX-License-Identifier: MIT
# Tokenizers and text. tok_diff.py compares with the Python package tokenizers; SEGUE_TOK_DIFF_COUNT (environment) sets
# how many strings per kind, 20,000 by default.
segue_test(text_llama "text;golden" ${CMAKE_CURRENT_LIST_DIR}/tok_llama.c)

find_program(SEGUE_PYTHON NAMES python3 python)
add_executable(tok_diff ${CMAKE_CURRENT_LIST_DIR}/tok_diff.c)
target_link_libraries(tok_diff PRIVATE segue_static)
