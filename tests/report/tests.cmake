# Pages and charts of the command (cli/report/), and what is measured for them.
file(GLOB report_sources ${PROJECT_SOURCE_DIR}/cli/report/*.c)
segue_test(report_charts "small;quick" report/charts.c ${report_sources} ${PROJECT_SOURCE_DIR}/cli/term/out.c)
target_include_directories(report_charts PRIVATE ${PROJECT_SOURCE_DIR}/cli)
segue_test(report_predicted "small;quick" report/predicted.c ${report_sources} ${PROJECT_SOURCE_DIR}/cli/bench/bench_html.c
  ${PROJECT_SOURCE_DIR}/cli/term/out.c)
target_include_directories(report_predicted PRIVATE ${PROJECT_SOURCE_DIR}/cli)
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND")
  segue_script(report_page "api;quick" ${SEGUE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/report/report_page.py)
  set_tests_properties(report_page PROPERTIES ENVIRONMENT "${SEGUE_TEST_ENVIRONMENT};PYTHONPATH=${CMAKE_CURRENT_SOURCE_DIR}/cli")
endif()
