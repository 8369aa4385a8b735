# SPDX-License-Identifier: MIT
# Tokenizers and text. tok_diff.py compares with the Python package tokenizers; SEGUE_TOK_DIFF_COUNT (environment) sets
# how many strings per kind, 20,000 by default. SEGUE_LLAMA_SOURCE names llama.cpp's unpacked source.
segue_test(text_golden "text;golden;quick" ${CMAKE_CURRENT_LIST_DIR}/tok_golden.c)
segue_test(text_stream "text;quick" ${CMAKE_CURRENT_LIST_DIR}/tok_stream.c)
segue_test(text_hostile "text;fault;quick" ${CMAKE_CURRENT_LIST_DIR}/tok_hostile.c)
if(NOT SEGUE_SANITIZE) # their frames are ten times as large
  segue_script(text_hostile_stack "text;quick" sh -c "ulimit -s 128 && exec $<TARGET_FILE:text_hostile> 'deep_*'")
endif()
segue_test(text_default "text;golden;quick" ${CMAKE_CURRENT_LIST_DIR}/tok_default.c)
segue_test(text_llama "text;golden" ${CMAKE_CURRENT_LIST_DIR}/tok_llama.c)

add_executable(tok_diff ${CMAKE_CURRENT_LIST_DIR}/tok_diff.c)
target_link_libraries(tok_diff PRIVATE segue_static)
segue_script(text_tok_diff "text;golden" ${CMAKE_CURRENT_LIST_DIR}/tok_diff.sh "${SEGUE_PYTHON}" $<TARGET_FILE:tok_diff>
  ${PROJECT_BINARY_DIR}/tok)
segue_script(text_tok_gguf "text;golden" ${CMAKE_CURRENT_LIST_DIR}/tok_diff.sh "${SEGUE_PYTHON}" $<TARGET_FILE:tok_diff>
  ${PROJECT_BINARY_DIR}/tok-gguf gguf)
segue_script(text_unicode "text;golden" ${CMAKE_CURRENT_LIST_DIR}/unicode_tables.sh "${SEGUE_PYTHON}")
