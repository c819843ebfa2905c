# `cmake --install build --prefix X` gives a tree that works wherever it is moved: the programs find each
# other and the data by their own place. LibTorch isn't copied; the worker knows where it was.
include_guard(GLOBAL)

install(TARGETS runner RUNTIME DESTINATION bin)
if(TARGET runner-worker)
  set_target_properties(runner-worker PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS runner-worker RUNTIME DESTINATION bin)
endif()
foreach(library IN ITEMS runner-cuda runner-mpi)
  if(TARGET ${library})
    set_target_properties(${library} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${library} LIBRARY DESTINATION bin)
  endif()
endforeach()
install(DIRECTORY configs DESTINATION share/runner)
install(DIRECTORY datasets/data DESTINATION share/runner/datasets)
install(FILES README.md DESTINATION share/doc/runner OPTIONAL)
