# Build types, sanitizers and warnings of weir's own code. None of it propagates to programs that use weir.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  # Line tables suffice for stack traces and profiles, and take a third of the size of -g.
  foreach(language CXX CUDA)
    set(CMAKE_${language}_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
    set(CMAKE_${language}_FLAGS_DEBUG "-O1 -g")
  endforeach()
  # Optimizing instrumented code would cost more time than the short test runs save.
  if(WEIR_SANITIZE MATCHES "address")
    set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")
  elseif(WEIR_SANITIZE)
    set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
  endif()
  set(CMAKE_CUDA_FLAGS_RELEASE "-O2 -DNDEBUG -Xcompiler=-g1")
  set(CMAKE_CUDA_FLAGS_DEBUG "-O1 -Xcompiler=-g")
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # a tenth faster: GCC then first collects garbage at 1 GB
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1000000>")
  endif()
  find_program(WEIR_CCACHE ccache)
  if(WEIR_CCACHE)
    # Without this sloppiness ccache does not cache files that use the tests' precompiled header. Without depend mode
    # it compares preprocessed text, so that it reuses a precompiled header from before a comment changed. GCC then no
    # longer knows the header by `#pragma once`. The namespace keeps results of other modes out.
    set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
                 CCACHE_NAMESPACE=weir ${WEIR_CCACHE})
    foreach(language CXX CUDA)
      if(NOT CMAKE_${language}_COMPILER_LAUNCHER OR CMAKE_${language}_COMPILER_LAUNCHER MATCHES "^([^;]*/)?ccache$")
        set(CMAKE_${language}_COMPILER_LAUNCHER ${launcher})
      endif()
    endforeach()
  endif()
endif()

# There are about a hundred test programs, and lld links each three times as fast.
if(PROJECT_IS_TOP_LEVEL)
  find_program(WEIR_LLD ld.lld)
  if(WEIR_LLD)
    add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
  endif()
endif()

if(WEIR_SANITIZE)
  add_compile_options(-fsanitize=${WEIR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(WEIR_SANITIZE MATCHES undefined)  # the address sanitizer finds these too, in a tenth of the compile time
    add_compile_options(-fno-sanitize=null,vptr,object-size)
  endif()
  add_link_options(-fsanitize=${WEIR_SANITIZE})
endif()

# Warnings for a target of weir; errors for both compilers if WEIR_WERROR.
function(weir_own_code target)
  set(warnings -Wall -Wextra)
  if(WEIR_WERROR)
    list(APPEND warnings -Werror)
  endif()
  if(WEIR_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND warnings -Wno-error=tsan)  # warns that fences are not modelled, which is no defect
  endif()
  string(REPLACE ";" "," joined "${warnings}")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${joined}>")
endfunction()
