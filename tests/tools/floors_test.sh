#!/usr/bin/env bash
# Plants one violation at a time in a small tree and expects tools/floors to report it. The clean one passes.
# Usage: floors_test.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fresh() {  # a tree without violations
  rm -rf "$work/t"
  mkdir -p "$work/t"/{tools,include/weir,runtime/base,runtime/driver/cuda,runtime/clock,simulator/machine,peer/link,peer/collective,tensor,tests/clock}
  cp "$root/tools/floors.txt" "$work/t/tools/"
  cd "$work/t"
  echo '#include <string>' > include/weir/types.h
  echo '#include "weir/types.h"' > include/weir/stream.h
  printf '#include <atomic>\n#include <thread>\nstd::atomic<int> a; thread_local int b;\n' > runtime/base/sync.h
  printf '#include <sys/mman.h>\nint f() { return ::mmap(0); }\n' > runtime/base/os.cpp
  printf '# a comment\nwhatnot names the thing itself\ngizmo texts device\n' > tools/retired_words.txt
  printf '#include "../base/sync.h"\nint gizmo;  // whatnot, gizmos\n' > runtime/driver/driver.h
  printf '#include <cuda.h>\n#include "runtime/driver/driver.h"\n' > runtime/driver/cuda/work.cpp
  printf '#include "runtime/base/sync.h"\n// std::mutex, mmap( and #include <thread> in a comment\nchar const* s = "std::mutex thread_local"; /* steady_clock\n mmap(0) */ int x = os::mmap(1) + d.mmap(2); char q = 0x27; std::chrono::nanoseconds n;\n' > runtime/clock/stream_clock.h
  echo '#include "runtime/driver/driver.h"' > simulator/machine/machine.h
  echo '#include <nccl.h>' > peer/collective/nccl_library.h
  echo '#include "weir/stream.h"' > peer/link/links.h
  echo '#include <cublas_v2.h>' > tensor/ops.cu
  printf '#include <mutex>\n#include "runtime/clock/stream_clock.h"\nTEST(suite, %s) {\n' "$(printf 'a%.0s' {1..54})" > tests/clock/stream_clock_test.cpp
  echo '#include <cuda_runtime.h>' > tests/clock/kernel_test.cu
}

fail() { echo "FAILED: $1"; failed=$((failed + 1)); }

kept() {  # kept NAME: the current tree passes
  "$root/tools/floors" "$work/t" > "$work/out" 2>&1 || { fail "$1"; cat "$work/out"; }
}

broken() {  # broken NAME PATH EXPECTED LINE...: with the lines in PATH, one violation at PATH, with EXPECTED
  local name=$1 path=$2 expected=$3 status=0
  shift 3
  fresh
  mkdir -p "$(dirname "$path")"
  printf '%s\n' "$@" >> "$path"
  "$root/tools/floors" "$work/t" > "$work/out" 2>&1 || status=$?
  if [ "$status" != 1 ] || ! grep -q "^$path:[0-9]*: .*$expected" "$work/out" || [ "$(wc -l < "$work/out")" != 2 ]; then
    fail "$name (exit status $status)"
    cat "$work/out"
  fi
}

fresh
kept "a tree without a broken rule passes"

broken "a back edge between folders" runtime/clock/fence.cpp 'floor 20 includes peer/link/links.h of floor 70' '#include "peer/link/links.h"'
broken "a back edge beside the file" runtime/base/os.cpp 'floor 0 includes runtime/clock/stream_clock.h of floor 20' '#include "../clock/stream_clock.h"'
broken "a back edge to a public header" runtime/clock/fence.cpp 'floor 20 includes include/weir/stream.h of floor 60' '#include <weir/stream.h>'
broken "a room that reaches into the simulated machine" peer/link/route.cpp 'simulator/machine/machine.h is included; weir asks a machine' '#include "simulator/machine/machine.h"'
broken "the longest prefix decides" include/weir/types.h 'floor 0 includes include/weir/stream.h' '#  include "weir/stream.h"'
broken "an include that names nothing" runtime/clock/fence.cpp 'names no file' '#include "runtime/clock/absent.h"'
broken "a file that no floor covers" runtime/elsewhere/a.h 'no prefix' 'int a;'
broken "a folder that is no room" runtime/clock/inner/a.h 'runtime/clock/inner/ is no room' 'int a;'
broken "CUDA on a floor above the driver" runtime/clock/fence.cpp '<cuda_runtime.h> is included' '#include <cuda_runtime.h>'
broken "CUDA in a public header" include/weir/stream.h '<cuda.h> is included' '#include <cuda.h>'
broken "NCCL beside its own file" peer/collective/communicator.cpp '<nccl.h> is included' '#include <nccl.h>'
broken "cuBLAS in the tensor's other file" tensor/tensor.cpp '<cublas_v2.h> is included' '#include <cublas_v2.h>'
broken "CUDA in a test that is no kernel" tests/clock/stream_clock_test.cpp '<cuda.h> is included' '#include <cuda.h>'
broken "an atomic's header" runtime/clock/fence.cpp '<atomic> is included' '#include <atomic>'
broken "a thread's header" peer/collective/communicator.cpp '<thread> is included' '#include <thread>'
broken "an atomic" runtime/clock/fence.cpp 'std::atomic' 'std::atomic<int> a;'
broken "an atomic of a named type" runtime/clock/fence.cpp 'std::atomic_int' 'std::atomic_int a;'
broken "a lock" runtime/clock/stream_clock.h 'std::lock_guard' 'int a; std::lock_guard g(m); // why'
broken "a condition" runtime/clock/fence.cpp 'std::condition_variable_any' 'std::condition_variable_any c;'
broken "an atomic view of a plain word" runtime/clock/fence.cpp 'std::atomic_ref' 'int i = std::atomic_ref<int>(a).load();'
broken "a semaphore's header" peer/collective/communicator.cpp '<semaphore> is included' '#include <semaphore>'
broken "a sleep" peer/collective/communicator.cpp 'std::this_thread' 'std::this_thread::sleep_for(one);'
broken "a lock of POSIX" runtime/clock/fence.cpp 'made by hand' 'pthread_mutex_t m; int e = __sync_fetch_and_add(&a, 1);'
broken "a thread" tensor/tensor.cpp 'std::thread' '  std::thread t([] {});'
broken "a clock" runtime/clock/fence.cpp 'steady_clock' 'auto t = std::chrono::steady_clock::now();'
broken "a loop over what a lock guarded" peer/collective/communicator.cpp 'is gone before the first turn' 'void f() { for (auto& b : *all_.lock()) b.end(); }'
broken "a thread_local" peer/collective/communicator.cpp 'thread_local is used' 'static thread_local int a;'
broken "a builtin atomic" peer/collective/communicator.cpp 'made by hand' 'int b = __atomic_load_n(&a, 0);'
broken "a system call's header" runtime/clock/fence.cpp '<sys/mman.h> is included' '#include <sys/mman.h>'
broken "a loader's header" peer/collective/communicator.cpp '<dlfcn.h> is included' '#include <dlfcn.h>'
broken "a system call" runtime/clock/fence.cpp 'mmap(' 'void* p = mmap(nullptr, 1);'
broken "a system call at global scope" runtime/clock/fence.cpp '::open(' 'int f = ::open("a");'
broken "code after a comment that ends" runtime/clock/fence.cpp 'std::mutex' '/* one' 'two */ std::mutex m;'
broken "a value of the process that is made by new" runtime/clock/fence.cpp 'base::lasting needs no host memory' 'static auto* const m = new base::mutex;'
broken "a name that says nothing" runtime/clock/fence.cpp 'fence_manager' 'class fence_manager {'
broken "a file that is too long" runtime/clock/fence.cpp 'has 501 lines of code' $(seq -f 'int_a%g;' 501)
broken "a test with a long name" tests/clock/stream_clock_test.cpp 'has 61 characters' "TEST(suite, $(printf 'a%.0s' {1..55})) {"
broken "a test of parameters with a long name" tests/clock/kernel_test.cu 'has 61 characters' "TEST_P(suite, $(printf 'a%.0s' {1..55})) {"
broken "a test with capital letters" tests/clock/stream_clock_test.cpp 'has capital letters' 'TEST_F(suite, aName) {'
broken "a retired word in a name" runtime/clock/fence.cpp '"whatnot" is a retired word; say the thing itself' 'int the_whatnot_count;'
broken "a retired word in a file's name" tensor/whatnot.h '"whatnot" is a retired word' 'int a;'
broken "a retired word in a comment" tests/clock/stream_clock_test.cpp '"gizmo" is a retired word; say device' 'int a;  // One Gizmo.'
broken "a retired word in a comment of several lines" runtime/clock/fence.cpp 'retired' '/* one' 'gizmo */ int a;'
top=org  # apart, for this file is checked, too
broken "a host of an archive in a script" tools/fetch "packages.example.$top is a host" "mirror=http://packages.example.$top/stable"
broken "a host of an archive without a scheme" cmake/fetch.cmake "packages.example.$top is a host" "set(from packages.example.$top)"
broken "a retired word in a document" docs/decisions/why.md 'retired' 'Each gizmo has one.'

fresh
{ seq -f 'int a%g;  // said' 250; seq -f '  // %g' 100; echo; printf '/* one\n   two */\n'; seq -f 'int b%g;' 249; echo '#include <string>'; } > runtime/clock/fence.cpp
kept "comments and blank lines are no lines of code"

fresh
echo 'long runtime/clock/fence.cpp 510' >> tools/floors.txt
seq -f 'int_a%g;' 501 > runtime/clock/fence.cpp
kept "a file that may be long for now"
grep -q '^runtime/clock/fence.cpp: 501 lines of code' "$work/out" || fail "a file that may be long for now is told"
for lines in 500 511; do
  seq -f 'int_a%g;' $lines > runtime/clock/fence.cpp
  ! "$root/tools/floors" "$work/t" > "$work/out" 2>&1 || fail "a row for more lines than 500 lets $lines pass"
done

fresh
echo 'runtime/clock/ 2' >> tools/floors.txt
if "$root/tools/floors" "$work/t" > "$work/out" 2>&1 || ! grep -q 'runtime/clock/ does not say what it is for' "$work/out"; then fail "a room without a purpose"; fi
printf '# rooms\nruntime/base/  0  locks and clocks\ninclude/weir/types.h 0\ntests/ 90  all tests\n' > tools/floors.txt
[ "$("$root/tools/floors" --tree "$work/t")" = " 0  runtime/base/  locks and clocks
90  tests/         all tests" ] || fail "the tree: $("$root/tools/floors" --tree "$work/t")"

fresh
echo 'whatnot nowhere x' > tools/retired_words.txt
if "$root/tools/floors" "$work/t" > /dev/null 2>&1; then fail "a word that is retired nowhere"; fi
rm tools/floors.txt
if "$root/tools/floors" "$work/t" > /dev/null 2>&1; then fail "a tree without tools/floors.txt cannot be checked"; fi

[ "$failed" = 0 ] || { echo "$failed cases failed"; exit 1; }
