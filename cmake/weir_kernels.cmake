# weir_kernels(target file.cu...): adds files that hold kernels to a library or program.
# With a toolkit nvcc compiles them; without one they are C++, and their kernels run on the simulated machine.
if(CMAKE_CUDA_COMPILER_LOADED AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  # CMake 3.25 does not know that nvcc 12 and newer speak C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()

function(weir_kernels target)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "weir_kernels: '${target}' is no target. Usage: weir_kernels(target file.cu...), after add_library or add_executable.")
  endif()
  if(NOT ARGN)
    message(FATAL_ERROR "weir_kernels(${target}): no files given. Usage: weir_kernels(target file.cu...)")
  endif()
  target_sources(${target} PRIVATE ${ARGN})
  if(WEIR_WITH_CUDA AND CMAKE_CUDA_COMPILER_LOADED)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES LANGUAGE CUDA)
    set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr>")
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  else()
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES
      LANGUAGE CXX COMPILE_OPTIONS "-x;c++" SKIP_PRECOMPILE_HEADERS ON)
    target_compile_features(${target} PRIVATE cxx_std_20)
  endif()
endfunction()
