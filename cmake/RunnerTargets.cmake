# The two functions that every folder's CMakeLists.txt uses. A target's DEPS are the architecture:
# a folder can include only what its DEPS (and theirs) export.
include_guard(GLOBAL)

find_program(RUNNER_CCACHE ccache)
if(RUNNER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RUNNER_CCACHE})
endif()
find_program(RUNNER_MOLD mold)
if(RUNNER_MOLD AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  add_link_options(-fuse-ld=mold)
endif()

add_library(runner_options INTERFACE)
target_include_directories(runner_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(runner_options INTERFACE -Wall -Wextra -Wpedantic
  # g++ 12 sees overlaps in "literal" + std::string at -O2 that are not there (GCC PR 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<BOOL:${RUNNER_WERROR}>:-Werror>)
if(RUNNER_SANITIZE)
  target_compile_options(runner_options INTERFACE -fsanitize=${RUNNER_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  target_link_options(runner_options INTERFACE -fsanitize=${RUNNER_SANITIZE})
endif()

# runner_library(NAME diag SOURCES a.cpp … [DEPS registry …] [PRIVATE_DEPS ZLIB::ZLIB …])
# makes the static library runner_<NAME>. DEPS name other folders' libraries; PRIVATE_DEPS are
# third-party targets that the folder's headers don't show.
function(runner_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target runner_${ARG_NAME})
  add_library(${target} STATIC ${ARG_SOURCES})
  target_link_libraries(${target} PUBLIC runner_options)
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${target} PUBLIC runner_${dep})
  endforeach()
  target_link_libraries(${target} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# runner_test(NAME diag SOURCES a_test.cpp … DEPS diag … [LABELS …] [UNDER program …]) makes the program
# test_<NAME> (doctest) and one CTest test of the same name, which the program UNDER runs if there is one.
function(runner_test)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS;PRIVATE_DEPS;LABELS;UNDER" ${ARGN})
  set(target test_${ARG_NAME})
  add_executable(${target} ${CMAKE_SOURCE_DIR}/tests/main.cpp ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${target} PRIVATE runner_options doctest::doctest ${ARG_PRIVATE_DEPS})
  target_compile_definitions(${target} PRIVATE RUNNER_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                               RUNNER_BINARY_DIR="${CMAKE_BINARY_DIR}")
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(${target} PRIVATE runner_${dep})
  endforeach()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_UNDER} $<TARGET_FILE:${target}>)
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300)
endfunction()

# runner_registered_list(<folder> <what>) writes <folder>/registered.cpp in the build tree: the
# function register_<folder>(Catalog&) that calls register_<stem> of every <stem>.cpp in the folder.
# A new file is one new entry; a file without its function is a link error that names it.
function(runner_registered_list folder catalog header out_var)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(declarations "")
  set(calls "")
  foreach(file IN LISTS files)
    get_filename_component(stem ${file} NAME_WE)
    string(APPEND declarations "void register_${stem}(${catalog}& catalog);\n")
    string(APPEND calls "  register_${stem}(catalog);\n")
  endforeach()
  set(text "#include \"${header}\"\n\nnamespace runner::${folder} {\n${declarations}\nvoid register_all(${catalog}& catalog) {\n${calls}}\n}  // namespace runner::${folder}\n")
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/registered.cpp)
  file(GENERATE OUTPUT ${generated} CONTENT "${text}")
  set(${out_var} ${generated} ${files} PARENT_SCOPE)
endfunction()
