# Planted defects: tests/planted/NAME.patch changes one source file of the library. planted_NAME is the
# prover, linked with the changed file first. The linker then ignores the library's member, whose symbols are
# all defined.
#
# A patch begins with the lines `hazard:`, `check:` (one or several, as in bytes,race) and `runs:`.
# `only: yes` states that no other check may find the defect. `program:` names the program of all runs.
# The diff follows. Each check of tests/model/verdict.h finds a defect that no other one finds.
#
# The prover must find each defect within its stated runs, and none in the unchanged library.
find_program(WEIR_PATCH patch)
file(GLOB patches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/planted/*.patch)
set(wanted OFF)  # each costs a compilation, so one build type builds them
set(by_the_byte OFF)  # AddressSanitizer: only defects with `asan: yes`, which it must report
if(WEIR_SANITIZE MATCHES address)
  set(by_the_byte ON)
endif()
if(by_the_byte OR (CMAKE_BUILD_TYPE STREQUAL Release AND NOT WEIR_SANITIZE))
  set(wanted ON)
endif()
option(WEIR_PLANTED "Build the planted defects" ${wanted})
if(NOT WEIR_PLANTED OR NOT WEIR_PATCH OR NOT patches)
  return()
endif()

file(GLOB in_threads CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/stress/*.cpp)
list(FILTER in_threads EXCLUDE REGEX "_test\\.cpp$")
add_library(weir_prover OBJECT ${PROJECT_SOURCE_DIR}/tests/planted/prover.cpp ${PROJECT_SOURCE_DIR}/tests/planted/programs.cpp ${in_threads})
weir_own_code(weir_prover)
target_link_libraries(weir_prover PUBLIC weir_test_support GTest::gtest)

set(alone bytes order stray stuck invariants census answers race lifetime host over-wait places)  # not found alone yet
set(quick -O1 -g0 -Wno-unused -DWEIR_RULES)  # short compile time; the defect may leave names unused, or break a rule
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/planted_headers.cpp CONTENT "int main() {}\n")
add_executable(weir_planted_headers ${PROJECT_BINARY_DIR}/planted_headers.cpp)
target_precompile_headers(weir_planted_headers PRIVATE ${weir_precompiled})
target_link_libraries(weir_planted_headers PRIVATE weir_test_support GTest::gtest)
weir_own_code(weir_planted_headers)
target_compile_options(weir_planted_headers PRIVATE ${quick})
add_custom_target(planted)  # all of them; tools/planted prints their table

# weir_prover_program(name source): the prover, with that source linked before the library.
function(weir_prover_program name)
  add_executable(${name} $<TARGET_OBJECTS:weir_prover> ${ARGN})
  # The standard library comes first: a member of weir that defines some of its functions, too, is not linked for those
  # beside the planted copy.
  target_link_libraries(${name} PRIVATE stdc++ weir_test_support weir::weir weir::cblas GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/planted)
  add_dependencies(planted ${name})
endfunction()

foreach(patch ${patches})
  get_filename_component(name ${patch} NAME_WE)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${patch})
  file(STRINGS ${patch} lines)
  set(check "")
  set(runs 0)
  set(only "")
  set(of "")
  set(source "")
  set(asan OFF)
  foreach(line IN LISTS lines)
    if(line MATCHES "^check: (.*)$")
      set(check ${CMAKE_MATCH_1})
    elseif(line MATCHES "^runs: ([0-9]+)$")
      set(runs ${CMAKE_MATCH_1})
    elseif(line MATCHES "^only: yes$")
      set(only --only)
    elseif(line MATCHES "^program: (.*)$")
      set(of --of ${CMAKE_MATCH_1})
    elseif(line MATCHES "^asan: yes$")
      set(asan ON)
    elseif(line MATCHES "^\\+\\+\\+ b/([^ \t]+)")
      set(source ${CMAKE_MATCH_1})
    endif()
  endforeach()
  if(NOT check OR NOT runs OR NOT source)
    message(FATAL_ERROR "tests/planted/${name}.patch lacks `check:`, `runs:` or the name of the file that it changes")
  endif()
  if(by_the_byte)
    if(NOT asan)
      continue()
    endif()
    set(check crash)
  endif()
  if(only)
    list(REMOVE_ITEM alone ${check})
  endif()
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # its own library member
  set(changed ${PROJECT_BINARY_DIR}/planted/${name}.cpp)
  add_custom_command(OUTPUT ${changed} DEPENDS ${patch} ${PROJECT_SOURCE_DIR}/${source} ${PROJECT_SOURCE_DIR}/tests/planted/plant
    COMMAND ${PROJECT_SOURCE_DIR}/tests/planted/plant ${patch} ${PROJECT_SOURCE_DIR}/${source} ${changed}
    COMMENT "Planting ${name}" VERBATIM)
  weir_prover_program(planted_${name} ${changed})
  weir_own_code(planted_${name})
  target_include_directories(planted_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(planted_${name} SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
  target_compile_options(planted_${name} PRIVATE ${quick})
  target_precompile_headers(planted_${name} REUSE_FROM weir_planted_headers)
  # Recorded runs that found the defect: tests/tapes/PROGRAM-NAME.tape. Each must find it again.
  file(GLOB tapes CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/tapes/*-${name}.tape)
  list(TRANSFORM tapes PREPEND "--tape;")
  add_test(NAME planted.${name} COMMAND planted_${name} --check ${check} --within ${runs} ${only} ${of} ${tapes})
  set_tests_properties(planted.${name} PROPERTIES TIMEOUT 300 LABELS planted COST 100)
endforeach()

# Defects of the watch of CUDA's calls: tests/watch/planted/NAME.patch. Its tests must find each.
file(GLOB patches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/watch/planted/*.patch)
if(NOT TARGET watch_test OR NOT WEIR_WITH_CUDA OR by_the_byte)
  set(patches "")
endif()
foreach(patch ${patches})
  get_filename_component(name ${patch} NAME_WE)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${patch})
  file(STRINGS ${patch} source REGEX "^\\+\\+\\+ b/")
  string(REGEX REPLACE "^\\+\\+\\+ b/([^ \t]+).*" "\\1" source ${source})
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # its own library member
  set(changed ${PROJECT_BINARY_DIR}/planted/watch_${name}.cpp)
  add_custom_command(OUTPUT ${changed} DEPENDS ${patch} ${PROJECT_SOURCE_DIR}/${source} ${PROJECT_SOURCE_DIR}/tests/planted/plant
    COMMAND ${PROJECT_SOURCE_DIR}/tests/planted/plant ${patch} ${PROJECT_SOURCE_DIR}/${source} ${changed}
    COMMENT "Planting ${name}" VERBATIM)
  add_executable(planted_watch_${name} ${changed} $<TARGET_OBJECTS:watch_test> $<TARGET_OBJECTS:tests_watch>)
  weir_test_code(planted_watch_${name})
  target_compile_options(planted_watch_${name} PRIVATE ${quick})
  target_link_libraries(planted_watch_${name} PRIVATE GTest::gtest_main)
  set_target_properties(planted_watch_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/planted)
  add_dependencies(planted_watch_${name} weir_test_cuda weir_test_cupti)
  add_dependencies(planted planted_watch_${name})
  add_test(NAME planted.watch_${name} COMMAND planted_watch_${name})
  set_tests_properties(planted.watch_${name} PROPERTIES TIMEOUT 300 LABELS planted COST 100 WILL_FAIL ON)
endforeach()
if(alone AND NOT by_the_byte)
  message(FATAL_ERROR "no planted defect is found by ${alone} only (tests/planted/*.patch, `only: yes`)")
endif()

if(by_the_byte)
  return()  # the model tests run the same programs
endif()
add_test(NAME planted.all_fit COMMAND ${PROJECT_SOURCE_DIR}/tests/planted/all_fit ${PROJECT_SOURCE_DIR})
set_tests_properties(planted.all_fit PROPERTIES TIMEOUT 60 LABELS planted)
weir_prover_program(planted_none)
file(GLOB tapes CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/tapes/*.tape)
list(TRANSFORM tapes PREPEND "--tape;")
add_test(NAME planted.none COMMAND planted_none --within 5000 ${tapes})  # finds all but the rarest defects
set_tests_properties(planted.none PROPERTIES TIMEOUT 120 LABELS planted COST 100)
