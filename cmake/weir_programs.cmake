# Examples, the tool `weir` and the benchmarks. Each is built if its source files exist.

# weir_program_files(target file...): adds files and the common settings to a program or a part of one.
function(weir_program_files target)
  set(kernels ${ARGN})
  set(files ${ARGN})
  list(FILTER kernels INCLUDE REGEX "\\.cu$")
  list(FILTER files EXCLUDE REGEX "\\.cu$")
  target_sources(${target} PRIVATE ${files})
  weir_own_code(${target})
  if(kernels)
    weir_kernels(${target} ${kernels})
  endif()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE weir::weir)
  if(WEIR_UNITY AND NOT target STREQUAL "weir_bench")  # its files have conflicting using-directives
    weir_unity(${target} ${files})
  endif()
endfunction()

# weir_program(name glob...): a program from all matching .cpp and .cu files.
function(weir_program name)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${ARGN})
  if(NOT files)
    return()
  endif()
  add_executable(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  weir_program_files(${name} ${files})
endfunction()

# weir_tested_program(name file...): a program in examples/name with a test. The library name_parts holds all
# sources except the given files. Program and test share it.
function(weir_tested_program name)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} examples/${name}/*.cpp examples/${name}/*.cu)
  list(TRANSFORM ARGN PREPEND examples/${name}/ OUTPUT_VARIABLE own)
  list(REMOVE_ITEM files ${own})
  add_library(${name}_parts OBJECT)
  weir_program_files(${name}_parts ${files})
  weir_program(${name} ${own})
  target_link_libraries(${name} PRIVATE ${name}_parts)
endfunction()

# weir_options(target): links Boost.Program_options statically.
macro(weir_options target)
  set(Boost_USE_STATIC_LIBS ON)
  find_package(Boost 1.81 REQUIRED COMPONENTS program_options)
  target_link_libraries(${target} PRIVATE Boost::program_options)
endmacro()

weir_program(hello examples/hello.cu)
weir_program(turns examples/turns.cu)
weir_program(overflow examples/overflow.cu)
weir_tested_program(trainer main.cpp progress.cpp)
weir_options(trainer)
weir_tested_program(pipeline main.cpp)
weir_program(share examples/share/*.cpp examples/share/*.cu)
weir_program(questions examples/questions/*.cpp)
weir_tested_program(seeds main.cpp)
weir_program(pictures examples/pictures/*.cpp)
weir_program(exchange examples/interop/exchange.cpp)
weir_program(one_pool examples/interop/one_pool.cu)

# A program in C, over the shared library.
if(TARGET weir_shared)
  enable_language(C)
  add_executable(c_rows examples/c/main.c)
  set_target_properties(c_rows PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_compile_options(c_rows PRIVATE -Wall -Wextra -pedantic)
  target_link_libraries(c_rows PRIVATE weir::shared)
endif()

# The models of `weir bench train`, which the tool and a test share.
add_library(bench_train_models OBJECT)
weir_program_files(bench_train_models tools/weir/bench_train_model.cu tools/weir/bench_train_transformer.cu)

weir_program(weir_tool tools/weir/*.cpp)
if(TARGET weir_tool)
  weir_options(weir_tool)
  target_link_libraries(weir_tool PRIVATE bench_train_models)
  set_target_properties(weir_tool PROPERTIES OUTPUT_NAME weir)
  target_compile_definitions(weir_tool PRIVATE WEIR_VERSION="${PROJECT_VERSION}")
  if(WEIR_WITH_CUDA)
    target_compile_definitions(weir_tool PRIVATE WEIR_TOOLKIT="${CUDAToolkit_VERSION}")
  endif()
  find_package(ZLIB)  # without it, `weir replay` reads uncompressed traces only
  if(ZLIB_FOUND)
    target_link_libraries(weir_tool PRIVATE ZLIB::ZLIB)
    target_compile_definitions(weir_tool PRIVATE WEIR_WITH_ZLIB)
  endif()
  install(TARGETS weir_tool)
endif()

weir_program(weir_bench bench/*.cpp bench/*.cu)
if(TARGET weir_bench)
  find_package(benchmark REQUIRED)
  target_link_libraries(weir_bench PRIVATE benchmark::benchmark_main benchmark::benchmark)
endif()
