# Constrained output: schemas, grammars and expressions against jsonschema, masks against a byte-by-byte check.
add_executable(grammar_tool ${CMAKE_CURRENT_LIST_DIR}/grammar_tool.c)
target_link_libraries(grammar_tool PRIVATE segue_static)
segue_script(grammar_schema "text;golden" "${SEGUE_PYTHON}" ${CMAKE_CURRENT_LIST_DIR}/grammar_schema.py $<TARGET_FILE:grammar_tool>)
segue_test(grammar_mask "text;default" ${CMAKE_CURRENT_LIST_DIR}/grammar_mask.c)
