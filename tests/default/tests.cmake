segue_test(default_model "golden;slow" ${CMAKE_CURRENT_SOURCE_DIR}/default/default_model.c)
