# LibTorch from its wheel (or any unpacked LibTorch), without find_package(Torch), which drags in nvcc:
#   torch::cpu   libtorch_cpu and libc10, with their headers
#   torch::cuda  libtorch_cuda and what it needs of a CUDA toolkit; only with RUNNER_CUDA and a toolkit
# Looked for, in this order: LIBTORCH_DIR, CMAKE_PREFIX_PATH (both as CMake and as environment variables),
# and where scripts/setup puts it.
include_guard(GLOBAL)

set(RUNNER_TORCH_VERSION 2.11.0)

if(DEFINED ENV{XDG_CACHE_HOME})
  set(cache_folder "$ENV{XDG_CACHE_HOME}/runner")
else()
  set(cache_folder "$ENV{HOME}/.cache/runner")
endif()
string(REPLACE ":" ";" env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
set(candidates "")
foreach(prefix IN LISTS LIBTORCH_DIR CMAKE_PREFIX_PATH env_prefixes)
  # A prefix may be the library's own folder, the folder that holds it, or its share/cmake.
  list(APPEND candidates ${prefix} ${prefix}/torch ${prefix}/../.. ${prefix}/../../..)
endforeach()
if(DEFINED ENV{LIBTORCH_DIR})
  list(PREPEND candidates $ENV{LIBTORCH_DIR} $ENV{LIBTORCH_DIR}/torch)
endif()
list(APPEND candidates ${cache_folder}/libtorch-${RUNNER_TORCH_VERSION}/torch)

set(RUNNER_TORCH "")
foreach(candidate IN LISTS candidates)
  if(EXISTS ${candidate}/include/ATen/ATen.h AND EXISTS ${candidate}/lib/libtorch_cpu.so)
    file(REAL_PATH ${candidate} RUNNER_TORCH)
    break()
  endif()
endforeach()
if(NOT RUNNER_TORCH)
  message(FATAL_ERROR "LibTorch was not found: run scripts/setup, set LIBTORCH_DIR, or build the front only "
                      "with -DRUNNER_ENGINE=OFF")
endif()
message(STATUS "LibTorch: ${RUNNER_TORCH}")

set(RUNNER_HAVE_CUDA OFF)
if(RUNNER_CUDA AND EXISTS ${RUNNER_TORCH}/lib/libtorch_cuda.so)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    set(RUNNER_HAVE_CUDA ON)
  endif()
endif()

add_library(torch::cpu INTERFACE IMPORTED GLOBAL)
target_include_directories(torch::cpu SYSTEM INTERFACE ${RUNNER_TORCH}/include
                                                       ${RUNNER_TORCH}/include/torch/csrc/api/include)
target_link_libraries(torch::cpu INTERFACE ${RUNNER_TORCH}/lib/libtorch_cpu.so ${RUNNER_TORCH}/lib/libc10.so)
# The wheel's libraries find their own needs (libcudart, libcupti) beside them at run time; the linker need not.
target_link_options(torch::cpu INTERFACE -Wl,-rpath,${RUNNER_TORCH}/lib -Wl,--allow-shlib-undefined)
if(CUDAToolkit_FOUND)
  target_link_options(torch::cpu INTERFACE -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR})
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
