# weir_unity(target source...): compiles the sources of a top-level folder as one file, to parse headers once. The
# folders of the allocator are apart: in a larger file the compiler inlines less of the path of each allocation.
# So are options and reports.
#
# A file that a planted defect replaces is an exception: it must be its own library member. So are the files of
# this list: they define a name that another file of their folder defines or, rule.cpp, that the prover defines.
set(weir_alone
  runtime/base/rule.cpp checkpoint/header.cpp tools/weir/bench_alloc.cpp tools/weir/bench_share.cpp tools/weir/bench_staged.cpp tools/weir/trace.cpp)

function(weir_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # GCC reports types that use an unnamed namespace of an included source file
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
  foreach(source ${ARGN})
    if(source IN_LIST weir_alone OR IS_ABSOLUTE ${source})
      continue()
    endif()
    string(REGEX MATCH "^(runtime/memory/[a-z]+|runtime/driver|runtime/(options|report)|streams/api|[a-z]+)" group ${source})
    string(REGEX REPLACE "/(options|report)$" "/report" group ${group})
    string(REPLACE "/" "_" group ${group})
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
