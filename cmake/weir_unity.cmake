# weir_unity(target source...): compiles about ten sources of a folder as one, to parse headers once.
#
# Exceptions: files that define a name that another one of the folder defines. A file that a planted defect
# replaces is another exception: it must be its own library member.
set(weir_alone
  peer/collective/simulated_backend.cpp peer/link/nvlinks.cpp runtime/base/os_socket.cpp simulator/checker/checking_memory.cpp runtime/memory/blocks/arena_plan.cpp
  runtime/report/snapshot.cpp runtime/report/trace_events.cpp streams/stream/context.cpp streams/pinned/pages.cpp streams/copy/staging.cpp
  tools/weir/bench_alloc.cpp tools/weir/bench_share.cpp tools/weir/bench_staged.cpp tools/weir/trace.cpp)

function(weir_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # GCC reports types that use an unnamed namespace of an included source file
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
