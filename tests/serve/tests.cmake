# The server: its routes and bad input on a tiny model; the official clients on the default model.
if(SEGUE_PYTHON AND NOT SEGUE_PYTHON MATCHES "NOTFOUND" AND MICROHTTPD_FOUND)
  segue_script(serve_api "api" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/serve_api.py)
  segue_script(serve_hostile "api;fault" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/serve_hostile.py)
  segue_script(serve_clients "api;default" ${SEGUE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/serve_clients.py)
endif()
