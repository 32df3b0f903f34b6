# weir_kernels(target file.cu...): adds source files with kernels to a library or program.
# With a toolkit, nvcc compiles them. Without one they are C++, and the kernels run on the simulated machine.
# Call it at file scope, as enable_language requires: it enables CUDA if the project has not.
set_property(GLOBAL PROPERTY WEIR_WITH_CUDA ${WEIR_WITH_CUDA})
set_property(GLOBAL PROPERTY WEIR_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})

macro(weir_kernels target)
  get_property(_weir_with_cuda GLOBAL PROPERTY WEIR_WITH_CUDA)
  if(_weir_with_cuda AND NOT CMAKE_CUDA_COMPILER_LOADED)
    get_property(_weir_cmake_dir GLOBAL PROPERTY WEIR_CMAKE_DIR)
    include(${_weir_cmake_dir}/weir_cuda.cmake)
    enable_language(CUDA)
  endif()
  if(_weir_with_cuda AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    # CMake 3.25 does not know that nvcc supports C++20 since version 12.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  _weir_kernels(${target} "${_weir_with_cuda}" ${ARGN})
endmacro()

function(_weir_kernels target with_cuda)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "weir_kernels: '${target}' is no target. Usage: weir_kernels(target file.cu...), after add_library or add_executable.")
  endif()
  if(NOT ARGN)
    message(FATAL_ERROR "weir_kernels(${target}): no files given. Usage: weir_kernels(target file.cu...)")
  endif()
  target_sources(${target} PRIVATE ${ARGN})
  if(with_cuda)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES LANGUAGE CUDA)
    set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON)
    get_target_property(architectures ${target} CUDA_ARCHITECTURES)
    if(NOT architectures)  # the target was created before the language was enabled
      set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
    endif()
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr>")
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  else()
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES
      LANGUAGE CXX COMPILE_OPTIONS "-x;c++" SKIP_PRECOMPILE_HEADERS ON)
    target_compile_features(${target} PRIVATE cxx_std_20)
  endif()
endfunction()
