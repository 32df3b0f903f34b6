#!/usr/bin/env bash
# Every source and header of the library compiles without its neighbours: a unity build hides a missing include.
# Checks the ones that the latest commits changed. Without history, a few from the first of the list.
# The public headers tell a program in C++17 what they need. Usage: alone_test.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
cd "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rooms=(runtime streams peer tensor train checkpoint simulator include)
compiler=${CXX:-c++}
cuda=${CUDA_HOME:-/usr/local/cuda}/include
torch=/usr/include/torch
compiles() {  # compiles FILE
  "$compiler" -std=c++20 -x c++ -fsyntax-only -I. -Iinclude -isystem "$cuda" -isystem "$cuda/cccl" -isystem "$torch/csrc/api/include" "$1" 2> "$work/err"
}
has_libtorch_for() {  # false if the header wants LibTorch, or one with CUDA, that is not there
  case $1 in
    */libtorch_allocator.h) [ -f "$torch/csrc/cuda/CUDAPluggableAllocator.h" ] ;;
    */libtorch*.h) [ -d "$torch" ] ;;
  esac
}
mapfile -t files < <({ git log -40 --diff-filter=AM --name-only --format= -- "${rooms[@]}" 2> /dev/null || true; git ls-files "${rooms[@]}" 2> /dev/null || find "${rooms[@]}" -type f; } |
  grep -E '\.(h|cpp)$' | awk '!seen[$0]++' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done | head -n 6)
[ "${#files[@]}" -gt 0 ] || { echo "FAILED: no file to check"; exit 1; }
failed=0
for file in "${files[@]}"; do
  has_libtorch_for "$file" || continue
  [[ $file != *cuda* ]] || [ -f "$cuda/cuda.h" ] || continue
  compiles "$file" || { echo "FAILED: $file does not compile alone"; head -n 5 "$work/err"; failed=1; }
done
# A program in C++17 is told so, and nothing else. c.h and the types of DLPack serve it.
for header in include/weir/*.h; do
  case $header in */c.h | */export.h | */dlpack_abi.h | */thrust.h) continue ;; esac  # thrust.h wants nvcc first
  has_libtorch_for "$header" || continue
  [[ ! $header =~ /(cuda_mr|caching_device_allocator)\.h$ ]] || [ -d "$cuda/cccl" ] || continue
  ! "$compiler" -std=c++17 -x c++ -fsyntax-only -Iinclude -isystem "$cuda" -isystem "$cuda/cccl" -isystem "$torch/csrc/api/include" "$header" 2> "$work/err" || { echo "FAILED: $header compiles as C++17"; failed=1; }
  [ "$(grep 'error: ' "$work/err" | grep -cv 'weir needs C++20 or newer: compile with -std=c++20')" = 0 ] || { echo "FAILED: $header as C++17:"; head -n 5 "$work/err"; failed=1; }
done
echo 'inline source_location where;' > "$work/missing.h"
! compiles "$work/missing.h" || { echo "FAILED: a missing include was not detected"; failed=1; }
echo "${#files[@]} files compile alone"
exit $failed
