# LibTorch from its wheel (or any unpacked LibTorch), without find_package(Torch), which drags in nvcc:
#   torch::cpu   libtorch_cpu and libc10, with their headers
#   torch::cuda  libtorch_cuda and what it needs of a CUDA toolkit; only with RUNNER_CUDA and a toolkit
# Looked for, in this order: LIBTORCH_DIR, CMAKE_PREFIX_PATH (both as CMake and as environment variables),
# and where scripts/setup puts it.
include_guard(GLOBAL)

set(RUNNER_TORCH_VERSION 2.11.0)

if("$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(cache_folder "$ENV{HOME}/.cache/runner")
else()
  set(cache_folder "$ENV{XDG_CACHE_HOME}/runner")
endif()
if(NOT LIBTORCH_DIR)
  set(LIBTORCH_DIR "$ENV{LIBTORCH_DIR}")
endif()
if(LIBTORCH_DIR)
  # Named by hand: this one or none.
  set(candidates ${LIBTORCH_DIR} ${LIBTORCH_DIR}/torch)
else()
  string(REPLACE ":" ";" env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  set(candidates "")
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH env_prefixes)
    # A prefix may be the library's own folder, the folder that holds it, or its share/cmake[/Torch].
    list(APPEND candidates ${prefix} ${prefix}/torch ${prefix}/../.. ${prefix}/../../..)
  endforeach()
  list(APPEND candidates ${cache_folder}/libtorch-${RUNNER_TORCH_VERSION}/torch)
endif()

set(RUNNER_TORCH "")
foreach(candidate IN LISTS candidates)
  if(EXISTS ${candidate}/include/ATen/ATen.h AND EXISTS ${candidate}/lib/libtorch_cpu.so)
    file(REAL_PATH ${candidate} RUNNER_TORCH)
    break()
  endif()
endforeach()
if(NOT RUNNER_TORCH AND LIBTORCH_DIR)
  message(FATAL_ERROR "LIBTORCH_DIR names '${LIBTORCH_DIR}', which is no LibTorch: correct or unset it")
elseif(NOT RUNNER_TORCH)
  message(FATAL_ERROR "LibTorch was not found: run scripts/setup, set LIBTORCH_DIR, or build the front only "
                      "with -DRUNNER_ENGINE=OFF")
endif()
message(STATUS "LibTorch: ${RUNNER_TORCH}")

# CUDAToolkit_ROOT is where the search begins; CMake by itself doesn't look at CUDA_HOME.
if(NOT CUDAToolkit_ROOT AND NOT "$ENV{CUDA_HOME}" STREQUAL "")
  set(CUDAToolkit_ROOT "$ENV{CUDA_HOME}")
endif()
find_package(CUDAToolkit QUIET)
set(RUNNER_HAVE_CUDA OFF)
# The wheel's libraries want the CUDA release that they were built with.
if(RUNNER_CUDA AND CUDAToolkit_VERSION_MAJOR EQUAL 13 AND EXISTS ${RUNNER_TORCH}/lib/libtorch_cuda.so)
  set(RUNNER_HAVE_CUDA ON)
endif()

add_library(torch::cpu INTERFACE IMPORTED GLOBAL)
target_include_directories(torch::cpu SYSTEM INTERFACE ${RUNNER_TORCH}/include
                                                       ${RUNNER_TORCH}/include/torch/csrc/api/include)
target_link_libraries(torch::cpu INTERFACE ${RUNNER_TORCH}/lib/libtorch_cpu.so ${RUNNER_TORCH}/lib/libc10.so)
# Even libtorch_cpu needs libcudart and libcupti. Its own RPATH finds them in the wheels beside it; those of a
# toolkit only an RPATH of the program reaches: unlike a RUNPATH it counts for the libraries' own needs too.
target_link_options(torch::cpu INTERFACE -Wl,--disable-new-dtags -Wl,-rpath,${RUNNER_TORCH}/lib
                                         -Wl,--allow-shlib-undefined)
if(CUDAToolkit_FOUND)
  target_link_options(torch::cpu INTERFACE -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR}
                                           -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR}/../extras/CUPTI/lib64)
endif()

if(RUNNER_HAVE_CUDA)
  add_library(torch::cuda INTERFACE IMPORTED GLOBAL)
  target_include_directories(torch::cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(torch::cuda INTERFACE torch::cpu ${RUNNER_TORCH}/lib/libtorch_cuda.so
                                              ${RUNNER_TORCH}/lib/libc10_cuda.so)
  find_library(RUNNER_NCCL nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_path(RUNNER_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(RUNNER_NCCL AND RUNNER_NCCL_INCLUDE)
    target_link_libraries(torch::cuda INTERFACE ${RUNNER_NCCL})
    target_include_directories(torch::cuda SYSTEM INTERFACE ${RUNNER_NCCL_INCLUDE})
    target_compile_definitions(torch::cuda INTERFACE USE_C10D_NCCL)
    set(RUNNER_HAVE_NCCL ON)
  endif()
  message(STATUS "CUDA: ${CUDAToolkit_VERSION}, NCCL: ${RUNNER_NCCL}")
else()
  message(STATUS "CUDA: off")
endif()
