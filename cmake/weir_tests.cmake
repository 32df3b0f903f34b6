# The files tests/FOLDER/**/*_test.cpp (or .cu) form one program, FOLDER_test, which ctest may run in parts.
find_package(GTest REQUIRED)

file(GLOB support CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/support/*.cpp)
if(support)
  add_library(weir_test_support STATIC ${support})
  weir_own_code(weir_test_support)
  target_include_directories(weir_test_support PUBLIC ${PROJECT_SOURCE_DIR})
  target_include_directories(weir_test_support SYSTEM PUBLIC ${Boost_INCLUDE_DIRS})
  target_link_libraries(weir_test_support PUBLIC weir::weir GTest::gtest)
  foreach(call acquire release abort)  # static_guards.cpp replaces the runtime's functions
    target_link_options(weir_test_support INTERFACE LINKER:--wrap=__cxa_guard_${call} LINKER:-u,__wrap___cxa_guard_${call})
  endforeach()
  target_compile_definitions(weir_test_support PRIVATE WEIR_TEST_TAPES="${PROJECT_SOURCE_DIR}/tests/tapes")
else()
  add_library(weir_test_support INTERFACE)
  target_include_directories(weir_test_support INTERFACE ${PROJECT_SOURCE_DIR})
  target_include_directories(weir_test_support SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
  target_link_libraries(weir_test_support INTERFACE weir::weir GTest::gtest)
endif()

# GoogleTest and the standard library take most of a test's compile time, so all tests share a precompiled
# header. It belongs to a program, not to a library: GCC accepts it only for code with the same -fPIE.
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/test_headers.cpp CONTENT "int main() {}\n")
add_executable(weir_test_headers ${PROJECT_BINARY_DIR}/test_headers.cpp)
target_precompile_headers(weir_test_headers PRIVATE <gtest/gtest.h> <algorithm> <array> <atomic> <chrono> <cstdint>
  <functional> <map> <memory> <mutex> <random> <set> <sstream> <string> <thread> <unordered_map> <vector>)
target_link_libraries(weir_test_headers PRIVATE GTest::gtest Threads::Threads)
weir_own_code(weir_test_headers)

# Test code runs briefly, so compiling it without optimization saves time. The library is optimized.
add_library(weir_test_flags INTERFACE)
if(WEIR_SANITIZE)  # the value may contain a comma, which a generator expression does not accept
  target_compile_options(weir_test_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
else()
  target_compile_options(weir_test_flags INTERFACE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
endif()
if(WEIR_SANITIZE MATCHES undefined)  # saves a third of the compile time; the library itself stays instrumented
  target_compile_options(weir_test_flags INTERFACE -fno-sanitize=undefined)
endif()
target_link_libraries(weir_test_headers PRIVATE weir_test_flags)

# Compile settings of all test code.
function(weir_test_code target)
  weir_own_code(${target})
  target_link_libraries(${target} PRIVATE weir_test_support weir::cblas weir_test_flags)
  if(WEIR_WITH_CUDA)
    target_compile_definitions(${target} PRIVATE WEIR_WITH_CUDA)
    target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endfunction()

# weir_test_folder(file result): sets result to the library of the folder's other source files, or to nothing.
# The tests of the folder share it.
macro(weir_test_folder file result)
  get_filename_component(${result} ${file} DIRECTORY)
  file(GLOB beside CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${${result}}/*.cpp ${${result}}/*.cu)
  list(FILTER beside EXCLUDE REGEX "_test\\.(cpp|cu)$|_probe\\.cpp$")
  string(REPLACE "/" "_" ${result} ${${result}})
  if(NOT beside)
    set(${result} "")
  elseif(NOT TARGET ${${result}})
    set(kernels_beside ${beside})
    list(FILTER beside EXCLUDE REGEX "\\.cu$")
    list(FILTER kernels_beside INCLUDE REGEX "\\.cu$")
    add_library(${${result}} OBJECT ${beside})
    if(kernels_beside)
      weir_kernels(${${result}} ${kernels_beside})
    endif()
    weir_test_code(${${result}})
    target_link_libraries(${${result}} PRIVATE GTest::gtest)
  endif()
endmacro()

set(WEIR_TEST_FILES "" CACHE STRING "The test files to build, by their paths (tests/base/os_test.cpp); all when empty")

# A long test program runs as several shards, so that all processors stay busy.
set(weir_parts_of_explore_test 3)
set(weir_parts_of_faults_test 3)
set(weir_parts_of_memory_test 3)
set(weir_parts_of_model_test 2)
set(weir_parts_of_peer_test 3)
set(weir_parts_of_ranks_test 2)
set(weir_parts_of_streams_test 2)

# weir_test_entry(name program part parts variable...): adds a ctest entry for one shard of a program.
function(weir_test_entry name program part parts)
  add_test(NAME ${name} COMMAND ${program})
  if(parts GREATER 1)
    list(APPEND ARGN GTEST_TOTAL_SHARDS=${parts} GTEST_SHARD_INDEX=${part})
  endif()
  set_property(TEST ${name} PROPERTY ENVIRONMENT ${ARGN})
endfunction()

# weir_test_runs(program label): adds the ctest entries of a test program.
function(weir_test_runs program label)
  set(parts 1)
  if(weir_parts_of_${program})
    set(parts ${weir_parts_of_${program}})
  endif()
  set(limit 300)
  if(WEIR_SANITIZE)
    set(limit 600)
  endif()
  foreach(part RANGE 1 ${parts})
    set(name ${program})
    if(parts GREATER 1)
      string(APPEND name .${part})
    endif()
    math(EXPR index "${part} - 1")
    weir_test_entry(${name} ${program} ${index} ${parts})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${limit} COST 10${parts} LABELS ${label})  # longest first
  endforeach()
  # Repeats the tests with the race checker on every runtime. Some programs create no runtime, and those of
  # interop read device memory on the host, as other libraries do.
  if(NOT WEIR_SANITIZE AND NOT label MATCHES "^(base|driver|conformance|fuzz|interop|stress|watch)$")
    weir_test_entry(checked.${program} ${program} 0 1 WEIR_CHECK_RACES=fail WEIR_TEST_SEEDS=10)
    set_tests_properties(checked.${program} PROPERTIES TIMEOUT 300 COST 100 LABELS checked)
  endif()
endfunction()

# One program per folder, except for these files. They have their own main, change the environment, fork, load
# a library that cannot be unloaded, or are linked with parts of a program.
set(weir_own_program check_system_calls_seen_test defects_fork_locks_test defects_fork_owners_test defects_fork_test defects_process_end_test examples_pipeline_test examples_seeds_test examples_trainer_ranks_test examples_trainer_test
  interop_torch_hooks_test interop_torch_streams_test peer_child_process_test peer_nccl_calls_test peer_nccl_test peer_sim_test runtime_options_test)
# WEIR_UNITY compiles five files of these folders as one, or ten with a sanitizer, to parse shared headers
# once. The second list has the exceptions: files that define a name that another file defines too.
set(weir_together base conformance driver explore memory model peer streams tensor)
set(weir_in_one 5)
if(WEIR_SANITIZE)
  set(weir_in_one 10)
endif()
set(weir_alone_tests driver_sim_seeded_test model_memory_model_test peer_collective_test peer_collective_sim_test peer_route_test peer_share_hostile_test peer_share_kill_test peer_share_pool_test
  peer_share_test peer_share_ends_test peer_share_threads_test peer_stripes_test peer_stripes_threads_test streams_model_test peer_model_test streams_copy_reuse_test
  streams_pinned_test streams_pinned_uses_test streams_timeline_test)

# weir_test_name(file result): tests/runtime/log_test.cpp becomes runtime_log_test.
function(weir_test_name file result)
  string(REGEX REPLACE "^tests/(.*)\\.(cpp|cu)$" "\\1" name ${file})
  string(REPLACE "/" "_" name ${name})
  set(${result} ${name} PARENT_SCOPE)
endfunction()

# The watch of CUDA's calls is tested without a GPU, and without CUDA where its headers are.
find_path(WEIR_CUPTI_INCLUDE cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda /opt/cuda PATH_SUFFIXES include extras/CUPTI/include)

file(GLOB_RECURSE tests CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/*_test.cpp tests/*_test.cu)
list(FILTER tests EXCLUDE REGEX "^tests/consumer/")
set(programs "")
set(table "")
foreach(file ${tests})
  if(WEIR_TEST_FILES AND NOT file IN_LIST WEIR_TEST_FILES)
    continue()
  endif()
  if(NOT TARGET weir_torch AND file MATCHES "^tests/interop/torch_")
    continue()
  endif()
  # A sanitizer does not see into LibTorch.
  if((NOT WEIR_LIBTORCH OR WEIR_SANITIZE) AND file MATCHES "^tests/interop/libtorch_")
    continue()
  endif()
  if(NOT WEIR_CUPTI_INCLUDE AND file MATCHES "^tests/watch/")
    continue()
  endif()
  if(NOT TARGET weir_system_calls AND file STREQUAL "tests/check/system_calls_seen_test.cpp")
    continue()
  endif()
  string(REGEX REPLACE "^tests/([^/]*)/.*" "\\1" label ${file})
  weir_test_name(${file} name)
  set(program ${label}_test)
  if(name IN_LIST weir_own_program)
    set(program ${name})
  elseif(file MATCHES "^tests/interop/libtorch_")
    set(program interop_libtorch_test)
  endif()
  list(APPEND programs ${program})
  list(APPEND files_of_${program} ${file})
  set(label_of_${program} ${label})
  string(APPEND table "${file} ${program}\n")
endforeach()
list(REMOVE_DUPLICATES programs)
file(WRITE ${PROJECT_BINARY_DIR}/tests.txt "${table}")  # tools/gpu reads the program of each file

foreach(program ${programs})
  set(label ${label_of_${program}})
  add_executable(${program})
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(WEIR_UNITY AND label IN_LIST weir_together)
    set_target_properties(${program} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${weir_in_one})
  endif()
  set(folders "")
  foreach(file ${files_of_${program}})
    weir_test_folder(${file} folder)
    list(APPEND folders ${folder})
    if(file MATCHES "\\.cu$")
      weir_kernels(${program} ${file})
    else()
      target_sources(${program} PRIVATE ${file})
    endif()
    weir_test_name(${file} name)
    if(name IN_LIST weir_alone_tests OR file MATCHES "\\.cu$")
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  target_precompile_headers(${program} REUSE_FROM weir_test_headers)
  weir_test_code(${program})
  target_link_libraries(${program} PRIVATE ${folders} GTest::gtest_main)
  weir_test_runs(${program} ${label})
endforeach()

# These programs exit or fork while objects are in use, which is not a leak.
if(WEIR_SANITIZE)
  foreach(name defects_process_end_test defects_fork_locks_test defects_fork_owners_test defects_fork_test)
    if(TARGET ${name})
      set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION "ASAN_OPTIONS=string_append::detect_leaks=0")
    endif()
  endforeach()
endif()

# Against a stand-in for RMM's header, and CCCL without nvcc.
if(WEIR_WITH_CUDA)
  set_source_files_properties(tests/interop/rmm_error_test.cpp tests/interop/rmm_unlinked_test.cpp PROPERTIES
    INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/tests/interop/stand_in;${CUDAToolkit_INCLUDE_DIRS};${CUDAToolkit_INCLUDE_DIRS}/cccl")
  set_source_files_properties(tests/interop/rmm_unlinked_test.cpp PROPERTIES COMPILE_DEFINITIONS WEIR_WITHOUT_RMM)
endif()

if(TARGET faults_test)
  target_compile_definitions(faults_test PRIVATE WEIR_DOCS="${PROJECT_SOURCE_DIR}/docs/lab")
endif()

if(TARGET check_system_calls_seen_test)
  target_link_libraries(check_system_calls_seen_test PRIVATE weir::system_calls)
endif()
if(TARGET check_test AND TARGET weir_system_calls)
  add_dependencies(check_test weir_system_calls)
  set_source_files_properties(tests/check/system_calls_test.cpp PROPERTIES
    COMPILE_DEFINITIONS WEIR_SYSTEM_CALLS="$<TARGET_FILE:weir_system_calls>")
endif()

# A C program: what uses weir/c.h is not C++.
if(TARGET interop_test)
  enable_language(C)
  target_sources(interop_test PRIVATE tests/interop/c_program.c)
  set_source_files_properties(tests/interop/c_program.c PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "-std=c99;-pedantic-errors;-Wall;-Wextra;-Werror")
endif()

# A library that contains weir, for tests with dlopen and dlclose.
add_library(weir_test_plugin MODULE tests/defects/plugin/plugin.cpp)
weir_own_code(weir_test_plugin)
target_link_libraries(weir_test_plugin PRIVATE weir::weir)
target_link_options(weir_test_plugin PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/tests/defects/plugin/plugin.map")
set_target_properties(weir_test_plugin PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/tests/defects/plugin/plugin.map)
if(TARGET defects_process_end_test)
  add_dependencies(defects_process_end_test weir_test_plugin)
  target_compile_definitions(defects_process_end_test PRIVATE WEIR_PLUGIN="$<TARGET_FILE:weir_test_plugin>")
endif()

# It has NCCL's name, by which the loader finds it once it is loaded.
if(TARGET peer_nccl_calls_test)
  add_library(weir_test_fake_nccl MODULE tests/peer/fake_nccl/fake_nccl.cpp)
  weir_own_code(weir_test_fake_nccl)
  target_link_options(weir_test_fake_nccl PRIVATE "LINKER:-soname,libnccl.so.2")
  add_dependencies(peer_nccl_calls_test weir_test_fake_nccl)
  target_compile_definitions(peer_nccl_calls_test PRIVATE WEIR_FAKE_NCCL="$<TARGET_FILE:weir_test_fake_nccl>")
endif()

# Their names are those that the loader finds once they are loaded. Without CUDA the library has no watch.
if(TARGET watch_test)
  foreach(library cuda cupti)
    add_library(weir_test_${library} MODULE tests/watch/stand_in/lib${library}.cpp)
    weir_own_code(weir_test_${library})
    target_include_directories(weir_test_${library} SYSTEM PRIVATE ${WEIR_CUPTI_INCLUDE})
    add_dependencies(watch_test weir_test_${library})
  endforeach()
  target_link_options(weir_test_cuda PRIVATE "LINKER:-soname,libcuda.so.1")
  target_link_options(weir_test_cupti PRIVATE "LINKER:-soname,libcupti.so.13")
  target_include_directories(tests_watch SYSTEM PRIVATE ${WEIR_CUPTI_INCLUDE})
  target_include_directories(watch_test SYSTEM PRIVATE ${WEIR_CUPTI_INCLUDE})
  target_compile_definitions(tests_watch PRIVATE
    WEIR_STAND_IN_DRIVER="$<TARGET_FILE:weir_test_cuda>" WEIR_STAND_IN_CUPTI="$<TARGET_FILE:weir_test_cupti>")
  if(NOT WEIR_WITH_CUDA)
    file(GLOB watch CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} runtime/driver/cuda/watch/*.cpp)
    target_sources(watch_test PRIVATE ${watch} runtime/driver/cuda/symbols.cpp)
  endif()
endif()

# With libweir.so: the same plugin over it, and a program that shares one runtime with a plugin.
if(TARGET weir_shared)
  add_library(weir_test_shared_plugin MODULE tests/defects/plugin/plugin.cpp tests/interop/shared/plugin.cpp)
  add_executable(weir_test_shared tests/interop/shared/main.cpp)
  foreach(target weir_test_shared_plugin weir_test_shared)
    weir_own_code(${target})
    target_link_libraries(${target} PRIVATE weir::shared ${CMAKE_DL_LIBS})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  endforeach()
  add_test(NAME interop.shared COMMAND weir_test_shared $<TARGET_FILE:weir_test_shared_plugin>)
  set_tests_properties(interop.shared PROPERTIES TIMEOUT 60 LABELS interop ENVIRONMENT WEIR_DEVICES=sim:1:1)
endif()
if(TARGET interop_test AND TARGET weir_shared)
  add_dependencies(interop_test weir_test_plugin weir_test_shared_plugin)
  target_compile_definitions(interop_test PRIVATE WEIR_PLUGIN="$<TARGET_FILE:weir_test_plugin>" WEIR_SHARED_PLUGIN="$<TARGET_FILE:weir_test_shared_plugin>")
endif()

if(TARGET interop_libtorch_test)
  include(weir_libtorch)
  weir_with_libtorch(interop_libtorch_test)
endif()

if(TARGET interop_torch_streams_test)
  target_sources(interop_torch_streams_test PRIVATE interop/torch/retained_streams.cpp)
endif()

# The library that PyTorch loads, as PyTorch calls it. fake_c10.cpp stands for PyTorch's own library of that name.
if(TARGET interop_torch_hooks_test)
  add_library(fake_c10 MODULE tests/interop/fake_torch/fake_c10.cpp)
  weir_own_code(fake_c10)
  set_target_properties(fake_c10 PROPERTIES OUTPUT_NAME c10_cuda LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_options(fake_c10 PRIVATE LINKER:-soname,libc10_cuda.so)
  add_dependencies(interop_torch_hooks_test weir_torch fake_c10)
  target_compile_definitions(interop_torch_hooks_test PRIVATE WEIR_TORCH_LIBRARY="$<TARGET_FILE:weir_torch>"
    WEIR_FAKE_C10="$<TARGET_FILE:fake_c10>")
  find_package(Python3 3.9 COMPONENTS Interpreter)
  if(Python3_FOUND)
    add_test(NAME interop.python COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/interop/weir_torch_test.py
      ${PROJECT_SOURCE_DIR} $<TARGET_FILE:weir_torch>)
    set_tests_properties(interop.python PROPERTIES TIMEOUT 120 LABELS interop)
    # Where TORCH_ROOT names an installed PyTorch of CUDA.
    add_test(NAME interop.torch_native COMMAND ${PROJECT_SOURCE_DIR}/tests/interop/torch_native/run.sh
      ${PROJECT_SOURCE_DIR} $<TARGET_FILE:weir_torch>)
    set_tests_properties(interop.torch_native PROPERTIES TIMEOUT 300 LABELS interop SKIP_RETURN_CODE 77)
  endif()
endif()

# weir_test_of_program(test name file...): links a test of examples/name with all of its sources except the given
# files. They are compiled once if the program is built too.
macro(weir_test_of_program test name)
  if(TARGET ${test} AND TARGET ${name}_parts)
    target_link_libraries(${test} PRIVATE ${name}_parts)
  elseif(TARGET ${test})
    file(GLOB parts CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} examples/${name}/*.cpp)
    file(GLOB kernels CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} examples/${name}/*.cu)
    foreach(own ${ARGN})
      list(REMOVE_ITEM parts examples/${name}/${own})
    endforeach()
    target_sources(${test} PRIVATE ${parts})
    if(kernels)
      weir_kernels(${test} ${kernels})
    endif()
  endif()
endmacro()
weir_test_of_program(examples_trainer_test trainer main.cpp)
weir_test_of_program(examples_trainer_ranks_test trainer main.cpp)
weir_test_of_program(examples_seeds_test seeds main.cpp)
weir_test_of_program(examples_pipeline_test pipeline main.cpp)
weir_test_of_program(interop_libtorch_test gpt2 main.cpp)

# The tool's GPU sizes, topology matrix, snapshot reader and models, without its main.
if(TARGET tools_test)
  target_sources(tools_test PRIVATE tools/weir/gpu_sizes.cpp tools/weir/own_line.cpp tools/weir/topology.cpp
                 tools/weir/unpickle.cpp)
  if(TARGET bench_train_models)
    target_link_libraries(tools_test PRIVATE bench_train_models)
  else()
    weir_kernels(tools_test tools/weir/bench_train_model.cu tools/weir/bench_train_transformer.cu)
  endif()
endif()

# The code rules, and the tests of scripts and documents. A sanitizer does not change them.
if(NOT WEIR_SANITIZE)
  # All of the library but simulator/, with what takes its place. tools.without_simulator runs it.
  add_executable(weir_test_gpus_alone tests/tools/gpus_alone/program.cpp runtime/core/open_gpus.cpp
    "$<FILTER:$<TARGET_OBJECTS:weir>,EXCLUDE,/weir.dir/(./)?(simulator/|Unity/unity_simulator_)>")
  weir_own_code(weir_test_gpus_alone)
  target_compile_definitions(weir_test_gpus_alone PRIVATE $<TARGET_PROPERTY:weir,INTERFACE_COMPILE_DEFINITIONS>)
  target_include_directories(weir_test_gpus_alone PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_include_directories(weir_test_gpus_alone SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
  target_link_libraries(weir_test_gpus_alone PRIVATE Threads::Threads ${CMAKE_DL_LIBS}
    $<$<BOOL:${WEIR_LINKS_CBLAS}>:weir::cblas> $<$<BOOL:${WEIR_WITH_CUDA}>:CUDA::cudart_static>)
  set_target_properties(weir_test_gpus_alone PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/weir_objects.txt CONTENT "$<JOIN:$<TARGET_OBJECTS:weir>,\n>\n")
  add_test(NAME floors COMMAND ${PROJECT_SOURCE_DIR}/tools/floors ${PROJECT_SOURCE_DIR})
  file(GLOB scripts CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/tests/tools tests/tools/*_test.sh)
  if(NOT TARGET weir_shared)
    list(REMOVE_ITEM scripts exports_test.sh package_test.sh)
  endif()
  if(NOT TARGET weir_tool)
    list(REMOVE_ITEM scripts weir_test.sh questions_test.sh trainer_test.sh pictures_test.sh snapshots_test.sh)
  endif()
  foreach(script ${scripts})
    string(REPLACE "_test.sh" "" name ${script})
    add_test(NAME tools.${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/tools/${script} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
    set_tests_properties(tools.${name} PROPERTIES TIMEOUT 120 LABELS tools COST 300 SKIP_REGULAR_EXPRESSION "^skipped: ")  # longest first
  endforeach()
  set_tests_properties(tools.docs PROPERTIES TIMEOUT 400)  # a browser opens four pages
  if(TARGET weir_shared)
    set_tests_properties(tools.package PROPERTIES TIMEOUT 400)  # builds every program of the pages, some by nvcc
  endif()
  set_tests_properties(floors PROPERTIES TIMEOUT 60 LABELS tools)
endif()

# Not a test: prints what CUDA does on this machine where its documentation leaves it open.
if(WEIR_WITH_CUDA)
  file(GLOB probes CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/conformance/*_probe.cpp)
  add_executable(cuda_probe ${probes})
  weir_own_code(cuda_probe)
  weir_kernels(cuda_probe tests/conformance/kernels.cu)
  target_include_directories(cuda_probe PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(cuda_probe SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(cuda_probe PRIVATE weir::weir)
endif()

# The soak test: minutes on GPUs (tools/gpu soak), seconds on the simulated machine.
file(GLOB soak CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/soak/*_probe.cpp)
add_executable(soak ${soak})
weir_test_folder(tests/soak/soak_probe.cpp folder)
weir_own_code(soak)
target_include_directories(soak PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(soak SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
target_link_libraries(soak PRIVATE ${folder} weir::weir)
set_target_properties(soak PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
add_test(NAME soak COMMAND soak --seconds 120 --least 2 --soon 1 --budget 60)
set_tests_properties(soak PROPERTIES TIMEOUT 300 LABELS soak ENVIRONMENT WEIR_DEVICES=sim:4:1)
# The long life of all acts: 10 s by hand, two minutes in CI (WEIR_TEST_LIFE_SECONDS). Then each leak that it must find,
# here among quick acts, which are many within seconds. In two minutes it finds each among all acts, too. A sanitizer's
# heap has no count, and takes addresses of its own.
if(NOT WEIR_SANITIZE)
  add_test(NAME life COMMAND soak life)
  set_tests_properties(life PROPERTIES TIMEOUT 600 COST 400 LABELS soak ENVIRONMENT WEIR_DEVICES=sim:2:1)
  foreach(leak addresses used_addresses device_bytes descriptors threads host_bytes time)
    add_test(NAME life.${leak} COMMAND soak life --leak ${leak} --seconds 8
      --only blocks,events,pinned_blocks,graphs,shares,caches)
    set_tests_properties(life.${leak} PROPERTIES TIMEOUT 120 LABELS soak ENVIRONMENT WEIR_DEVICES=sim:2:1)
  endforeach()
endif()

# For compute-sanitizer on GPUs: accesses that it must report, and a clean run. The simulated machine runs the
# clean one.
add_executable(overrun)
weir_kernels(overrun tests/overrun/overrun.cu)
weir_own_code(overrun)
target_link_libraries(overrun PRIVATE weir::weir)
set_target_properties(overrun PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
add_test(NAME overrun COMMAND overrun clean)
set_tests_properties(overrun PROPERTIES TIMEOUT 60 LABELS soak ENVIRONMENT "WEIR_DEVICES=sim:1:1;WEIR_CONF=nvtx_memory:1")

# CUDA programs with bare launches, for a race checker that sees them on a GPU: tests/bare/judge.py runs each case of
# these. Without a GPU they skip. Only the last one links weir.
if(WEIR_WITH_CUDA)
  file(GLOB races CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} tests/bare/*_races.cu)
  list(REMOVE_ITEM races tests/bare/pool_races.cu)
  add_executable(weir_bare_races)
  weir_kernels(weir_bare_races tests/bare/races.cu ${races})
  set_source_files_properties(tests/bare/per_thread_races.cu PROPERTIES COMPILE_OPTIONS --default-stream=per-thread)
  add_executable(weir_bare_clean)
  weir_kernels(weir_bare_clean tests/bare/clean.cu)
  add_executable(weir_bare_pool_races)
  weir_kernels(weir_bare_pool_races tests/bare/pool_races.cu)
  target_link_libraries(weir_bare_pool_races PRIVATE weir::weir)
  foreach(program races clean pool_races)
    set_target_properties(weir_bare_${program} PROPERTIES
      OUTPUT_NAME bare_${program} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)  # ninja has a target `clean`
    weir_own_code(weir_bare_${program})
    target_include_directories(weir_bare_${program} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(weir_bare_${program} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  endforeach()
  add_test(NAME bare.races COMMAND weir_bare_races missing_wait right)
  add_test(NAME bare.clean COMMAND weir_bare_clean graph_replayed)
  add_test(NAME bare.pool_races COMMAND weir_bare_pool_races missing_record right)
  set_tests_properties(bare.races bare.clean bare.pool_races PROPERTIES TIMEOUT 60 LABELS soak SKIP_RETURN_CODE 77)
endif()

if(TARGET c_rows)
  add_test(NAME c_rows COMMAND c_rows)
  set_tests_properties(c_rows PROPERTIES TIMEOUT 60 LABELS examples ENVIRONMENT WEIR_DEVICES=sim:1:1)
endif()

# Two processes share a ring of buffers, undisturbed or with one of them killed or stopped halfway.
if(TARGET share)
  add_test(NAME share COMMAND share --bytes 65536 --rounds 60)
  foreach(mishap kill stop)
    foreach(who writer reader)
      add_test(NAME share.${mishap}_${who} COMMAND share --bytes 65536 --rounds 60 --timeout 500 --${mishap} ${who})
    endforeach()
  endforeach()
  set_tests_properties(share share.kill_writer share.kill_reader share.stop_writer share.stop_reader PROPERTIES
    TIMEOUT 60 LABELS examples ENVIRONMENT WEIR_DEVICES=sim:2:1)
endif()

# They check their results themselves.
foreach(program exchange one_pool)
  if(TARGET ${program})
    add_test(NAME ${program} COMMAND ${program})
    set_tests_properties(${program} PROPERTIES TIMEOUT 60 LABELS examples ENVIRONMENT WEIR_DEVICES=sim:2:1)
  endif()
endforeach()
if(TARGET libtorch)
  add_test(NAME libtorch COMMAND libtorch)
  set_tests_properties(libtorch PROPERTIES TIMEOUT 60 LABELS examples ENVIRONMENT WEIR_DEVICES=sim:2:1
    PASS_REGULAR_EXPRESSION "step 50: loss 0\\.0")
  add_test(NAME gpt2 COMMAND gpt2 --tokens ${PROJECT_SOURCE_DIR}/README.md --layers 2 --heads 2 --width 32
    --context 32 --vocabulary 256 --rate 0.01 --steps 30)
  add_test(NAME gpt2.unknown COMMAND gpt2 --tokens ${PROJECT_SOURCE_DIR}/README.md --layer 2)
  set_tests_properties(gpt2 gpt2.unknown PROPERTIES TIMEOUT 60 LABELS examples ENVIRONMENT "WEIR_DEVICES=sim:2:1;OPENBLAS_NUM_THREADS=1")
  set_tests_properties(gpt2 PROPERTIES PASS_REGULAR_EXPRESSION "validation loss [1-4]\\.")
  set_tests_properties(gpt2.unknown PROPERTIES PASS_REGULAR_EXPRESSION "gpt2: --layer is no option. See --help")
endif()
