segue_script(accuracy_default "golden;slow" sh ${CMAKE_CURRENT_SOURCE_DIR}/accuracy/accuracy.sh ${PROJECT_SOURCE_DIR})
