#!/usr/bin/env bash
# A build with ccache survives a change of a comment in a header that the precompiled header includes: ccache gives
# that header anew, and `#pragma once` still holds. Usage: cached_build_test.sh ROOT
set -euo pipefail
command -v ccache > /dev/null || { echo "skipped: no ccache"; exit 0; }
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/cache"
export CCACHE_DIR=$work/cache
unset CCACHE_DISABLE CCACHE_DEPEND CCACHE_NAMESPACE CCACHE_SLOPPINESS CMAKE_CXX_COMPILER_LAUNCHER
cat > "$work/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(cached CXX)
include($root/cmake/weir_flags.cmake)
add_library(cached STATIC one.cpp)
target_precompile_headers(cached PRIVATE number.h)
END
header() { printf '%s\n' "// $1" '#pragma once' 'struct number { int value; };' > "$work/number.h"; }
unit() { printf '%s\n' '#include "number.h"' "int $1(number n) { return n.value; }" > "$work/one.cpp"; }
build() {  # build TEXT: from nothing, as a fresh clone with an old cache
  rm -rf "$work/build"
  cmake -S "$work" -B "$work/build" > "$work/out" 2>&1 && cmake --build "$work/build" >> "$work/out" 2>&1 ||
    { echo "FAILED: the build $1:"; cat "$work/out"; exit 1; }
}
header 'a comment'
unit first
build 'with an empty cache'
header 'b comment'
unit second
build 'after a comment has changed'
build 'again'
ccache --print-stats | awk '$1 == "direct_cache_hit" { hits = $2 } END { exit !(hits >= 2) }' ||
  { echo "FAILED: nothing came from the cache"; ccache --print-stats; exit 1; }
