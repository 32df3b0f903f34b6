# weir_unity(target source...): compiles a folder's sources together, some ten at a time; the headers they share are read once for all of them.
# Not these: a name of their own stands in another file of the folder too, and what a planted defect replaces must be a member of the library.
set(weir_alone
  peer/collective/simulated_backend.cpp peer/link/nvlinks.cpp runtime/base/os_socket.cpp simulator/checker/checking_memory.cpp runtime/memory/blocks/arena_plan.cpp
  runtime/report/snapshot.cpp runtime/report/trace_events.cpp streams/stream/context.cpp streams/pinned/pages.cpp streams/copy/staging.cpp
  tools/weir/bench_alloc.cpp tools/weir/bench_share.cpp tools/weir/bench_staged.cpp tools/weir/trace.cpp)

function(weir_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # an unnamed namespace is no longer that of the file it takes for the main one
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
  foreach(source ${ARGN})
    get_filename_component(folder ${source} DIRECTORY)
    string(REPLACE "/" "_" group ${folder})
    if(source IN_LIST weir_alone OR IS_ABSOLUTE ${source})
      continue()
    endif()
    math(EXPR weir_unity_${group} "0${weir_unity_${group}} + 1")
    math(EXPR part "(${weir_unity_${group}} - 1) / 10")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group}_${part})
  endforeach()
endfunction()
